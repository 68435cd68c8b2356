"""Resize, crop, flip and rotate: the effect on camera matrices and 2D labels. Pixels are not touched here."""
import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from mmcv.transforms import BaseTransform
from PIL import Image

from georope.datasets.calibration import as_intrinsics, as_pose
from georope.errors import UnreadableInput
from georope.registry import TRANSFORMS


class ImagePlan(NamedTuple):
    """How one camera image is augmented, in steps in the order of the fields.

    Pixel coordinates are continuous: (0, 0) is the outer corner of the first pixel, its centre is (.5, .5).
    """
    source: tuple[int, int]  # height, width of the file's image
    resize: float  # factor, exactly
    crop: tuple[int, int]  # x, y of the crop's corner in the resized image; may lie outside: black
    size: tuple[int, int]  # height, width of the crop, which is the output
    flip: bool = False  # left to right
    rotate: float = 0.0  # degrees about the centre of the crop, counter-clockwise as seen

    @property
    def matrix(self) -> np.ndarray:
        """float64 (3, 3), homogeneous pixel of the source -> pixel of the output."""
        height, width = self.size
        matrix = np.array([[self.resize, 0, -self.crop[0]], [0, self.resize, -self.crop[1]], [0, 0, 1]], dtype=float)
        if self.flip:
            matrix = np.array([[-1, 0, width], [0, 1, 0], [0, 0, 1]]) @ matrix
        angle = np.radians(self.rotate)
        cos, sin, x, y = np.cos(angle), np.sin(angle), width / 2, height / 2
        turn = np.array([[cos, sin, x - cos * x - sin * y], [-sin, cos, y + sin * x - cos * y], [0, 0, 1]])
        return turn @ matrix if self.rotate else matrix


@TRANSFORMS.register_module()
class ImageAug(BaseTransform):
    """Choose a resize, crop, flip and rotation, and apply it to camera matrices and 2D labels.

    Pixels follow in :class:`LoadCameraImages`, which comes after this transform, because a JPEG can then be decoded at
    the scale that is needed. All cameras of a frame share the draws; cameras of different sizes share factors and
    fractions. Random numbers come from numpy's global generator in the order: resize factor, share cut at the bottom, x
    of the crop, flip (only if ``rand_flip``), rotation.

    In a test (``training=False``) nothing is drawn: the factor is the smallest that fills ``final_dim``, the crop is
    central in x and keeps the bottom.

    2D labels: a box becomes the bounding box of its transformed corners, clipped to the image, and is left out below
    ``MIN_SIZE`` pixels; its centre is transformed and moved onto the image's border where it lies outside (the recipe's
    rule: it becomes a cell of a heat map); its depth stays. Boxes fully covered by nearer boxes are left out. The order
    is farthest first. Resize, crop, flip, sampling: the recipe of the StreamPETR repository; rotation of labels and the
    exact covering rule (its farthest box is never left out): ours.

    Args:
        final_dim: Height, width of the output in pixels.
        resize_lim: Smallest and largest factor, relative to the file's image.
        bot_pct_lim: Smallest and largest share of the resized image's height cut at the bottom.
        rot_lim: Smallest and largest rotation in degrees.
        rand_flip: Flip left to right every other time.
        training: Draw, or the fixed choice for a test.

    Changes ``cam2img``, ``lidar2img`` (N, 4, 4) and, in training, ``gt_bboxes``, ``gt_bboxes_labels``, ``centers_2d``,
    ``depths`` (lists over cameras). Adds ``image_plans`` (list of :class:`ImagePlan`).

    Raises:
        OSError: The info file does not say how large an image is, and the image is missing or broken; names file,
            sample, camera.
    """

    MIN_SIZE = 2.0

    def __init__(self,
                 final_dim: Sequence[int],
                 resize_lim: Sequence[float],
                 bot_pct_lim: Sequence[float] = (0.0, 0.0),
                 rot_lim: Sequence[float] = (0.0, 0.0),
                 rand_flip: bool = True,
                 training: bool = True) -> None:
        self.final_dim = tuple(final_dim)
        self.resize_lim, self.bot_pct_lim, self.rot_lim = tuple(resize_lim), tuple(bot_pct_lim), tuple(rot_lim)
        self.rand_flip, self.training = rand_flip, training

    def draw(self) -> dict:
        """One set of random numbers: ``resize``, ``bottom``, ``x`` (share of the free width), ``flip``, ``rotate``."""
        return dict(
            resize=np.random.uniform(*self.resize_lim),
            bottom=np.random.uniform(*self.bot_pct_lim),
            x=np.random.uniform(),
            flip=bool(self.rand_flip and np.random.choice([0, 1])),
            rotate=np.random.uniform(*self.rot_lim))

    def plan(self, source: tuple[int, int], draw: dict) -> ImagePlan:
        """The plan for an image of ``source`` (height, width) pixels; in a test ``draw`` is not used."""
        (height, width), (final_height, final_width) = source, self.final_dim
        if not self.training:
            resize = max(final_height / height, final_width / width)
            draw = dict(resize=resize, bottom=np.mean(self.bot_pct_lim), x=0.5, flip=False, rotate=0.0)
        # width * (final_width / width) may come out a hair below final_width
        new_width, new_height = (int(size * draw['resize'] + 1e-6) for size in (width, height))
        crop = (int(draw['x'] * max(0, new_width - final_width)), int(
            (1 - draw['bottom']) * new_height) - final_height)
        return ImagePlan(source, draw['resize'], crop, self.final_dim, draw['flip'], draw['rotate'])

    def transform(self, results: dict) -> dict:
        if 'cam2img' not in results:  # mmdet3d's inference_multi_modality_detector passes on the info file's `images`
            results.update(_from_info(results['images']))
        draw = self.draw() if self.training else {}
        plans = []
        for camera, image in results['images'].items():
            if camera in results.get('missing_cameras', ()) and not (image['height'] and image['width']):
                plans.append(self.plan(self.final_dim, draw))  # any will do: it is black and hidden
                continue
            with errors_name(results['token'], camera):
                plans.append(self.plan(_image_size(image), draw))
        cam2img = results['cam2img'].copy()
        for i, plan in enumerate(plans):
            cam2img[i, :3] = plan.matrix @ cam2img[i, :3]
        results.update(cam2img=cam2img, lidar2img=cam2img @ results['lidar2cam'], image_plans=plans)
        if 'gt_bboxes' in results:
            keys = ('gt_bboxes', 'centers_2d', 'gt_bboxes_labels', 'depths')
            per_camera = [self._labels(plan, *labels) for plan, *labels in zip(plans, *(results[key] for key in keys))]
            results.update({key: list(values) for key, values in zip(keys, zip(*per_camera))})
        return results

    def _labels(self, plan: ImagePlan, bboxes: np.ndarray, centers: np.ndarray, labels: np.ndarray,
                depths: np.ndarray) -> tuple[np.ndarray, ...]:
        limit = np.array(plan.size[::-1])
        corners = _apply(plan.matrix, bboxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2))
        bboxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
        bboxes = np.clip(bboxes, 0, np.tile(limit, 2)).astype(np.float32)
        centers = np.clip(_apply(plan.matrix, centers), 0, limit).astype(np.float32)
        keep = np.flatnonzero((bboxes[:, 2:] - bboxes[:, :2] >= self.MIN_SIZE).all(1))
        keep = keep[np.argsort(-depths[keep], kind='stable')]
        keep = keep[uncovered(bboxes[keep], plan.size)]
        return bboxes[keep], centers[keep], labels[keep], depths[keep]

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(final_dim={self.final_dim}, resize_lim={self.resize_lim}, '
                f'bot_pct_lim={self.bot_pct_lim}, rot_lim={self.rot_lim}, rand_flip={self.rand_flip}, '
                f'training={self.training})')


@contextlib.contextmanager
def errors_name(token: str, camera: str) -> Iterator[None]:
    """Adds sample and camera to an OSError that is raised within."""
    try:
        yield
    except OSError as error:
        raise UnreadableInput(f'sample {token}, camera {camera}: {error} (To go on without this frame: skip_tokens of '
                              "the dataset, or its incomplete='skip' or 'mask'.)") from error


def uncovered(bboxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Which boxes, given farthest first, are visible if each hides what is behind it.

    Args:
        bboxes: (n, 4) pixels, within the image. The whole pixels inside a box count.
        size: Height, width of the image.

    Returns:
        Sorted indices.
    """
    owner = np.full(size, -1, dtype=np.int32)
    whole = np.concatenate([np.ceil(bboxes[:, :2]), np.floor(bboxes[:, 2:])], axis=1).astype(int)
    for i, (x1, y1, x2, y2) in enumerate(whole):
        owner[y1:y2, x1:x2] = i
    seen = np.unique(owner)
    return seen[seen >= 0]


def _apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:2, :2].T + matrix[:2, 2]


def _from_info(images: dict) -> dict:
    """The arrays of a frame from an info file's ``images``, whose paths must be complete."""
    cam2img, lidar2cam = (np.stack([check(image[key], f'camera {name}: {key}') for name, image in images.items()])
                          for key, check in (('cam2img', as_intrinsics), ('lidar2cam', as_pose)))
    return dict(token='without token', cam_names=list(images), cam2img=cam2img, lidar2cam=lidar2cam,
                img_path=[image['img_path'] for image in images.values()])


def _image_size(image: dict) -> tuple[int, int]:
    """Height, width from the info file, else from the file's header."""
    if image.get('height') and image.get('width'):
        return image['height'], image['width']
    with Image.open(image['img_path']) as file:
        return file.size[::-1]
