"""Camera images and annotations into a frame."""
import logging
from collections.abc import Sequence
from typing import Optional, Union

import cv2
import mmengine.fileio
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.logging import print_log
from PIL import Image

from georope.registry import TRANSFORMS

from ..whole_frames import JPEG, has_end
from .image_aug import ImagePlan, errors_name

REDUCED = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4,
           8: cv2.IMREAD_REDUCED_COLOR_8}


@TRANSFORMS.register_module()
class LoadCameraAnnotations(BaseTransform):
    """Copy the content of ``ann_info`` (see :class:`georope.datasets.frame.Annotations`) into the frame itself."""

    def transform(self, results: dict) -> dict:
        if 'ann_info' not in results:
            raise ValueError(f'sample {results["token"]} has no annotations: LoadCameraAnnotations belongs to '
                             'training; a dataset with test_mode=True reads none.')
        results.update(results.pop('ann_info'))
        return results


@TRANSFORMS.register_module()
class LoadCameraImages(BaseTransform):
    """Read the images of all cameras as :class:`ImageAug` planned them; without a plan, as they are.

    Args:
        decode: ``'full'``: whole JPEG, Pillow's bicubic resize, rotation to the nearest pixel; the pixels of the
            StreamPETR repository. ``'reduced'``: the JPEG is decoded at 1/2 or 1/4 of its size where the plan is
            smaller than that, then warped once, bilinear: several times faster, for training.

    Adds ``img`` (list of (h, w, 3) uint8, BGR), ``img_shape`` and ``ori_shape`` (lists of (h, w)), ``filename`` (list).

    Raises:
        OSError: An image is missing, broken or not of the size that the info file says; names file, sample, camera.
            With ``incomplete='mask'`` of the dataset it is a warning, and the camera is hidden.
    """

    def __init__(self, decode: str = 'full') -> None:
        if decode not in ('full', 'reduced'):
            raise ValueError(f"LoadCameraImages: decode={decode!r}, choose 'full' or 'reduced'.")
        self.decode = decode

    def transform(self, results: dict) -> dict:
        plans = results.pop('image_plans', [None] * len(results['img_path']))
        missing = results.get('missing_cameras')  # None: a camera that is missing is an error
        images: list[Optional[np.ndarray]] = []
        for camera, path, plan in zip(results['cam_names'], results['img_path'], plans):
            image = None
            if not missing or camera not in missing:
                try:
                    with errors_name(results['token'], camera):
                        image = self._load(path, plan)
                except OSError as error:
                    if missing is None:
                        raise
                    print_log(f'hidden: {error}', 'current', logging.WARNING)
                    missing = [*missing, camera]
            images.append(image)
        shapes = [(0, 0) if image is None else image.shape[:2] for image in images]
        if missing is not None:
            images, shapes, missing = _with_padding(results, plans, images, shapes)
            results['missing_cameras'] = missing
        results['img_path'] = [path if isinstance(path, str) else '(in memory)' for path in results['img_path']]
        results.update(
            img=images,
            img_shape=shapes,
            ori_shape=[plan.source if plan else shape for plan, shape in zip(plans, shapes)],
            filename=list(results['img_path']))
        return results

    def _load(self, path: Union[str, np.ndarray], plan: Optional[ImagePlan]) -> np.ndarray:
        reduced = plan is not None and self.decode == 'reduced'
        image, reduction = read_image(path, plan.resize if reduced else 1.0)
        if plan is None:
            return image
        if image.shape[:2] != tuple(-(-size // reduction) for size in plan.source):
            height, width = (size * reduction for size in image.shape[:2])
            raise OSError(f'{path} has {width}x{height} pixels; the info file says {plan.source[1]}x{plan.source[0]}.')
        return warp_reduced(image, plan, reduction) if reduced else warp_full(image, plan)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(decode={self.decode!r})'


def _with_padding(results: dict, plans: Sequence[Optional[ImagePlan]], images: Sequence[Optional[np.ndarray]],
                  shapes: Sequence[tuple]) -> tuple[list, list, list]:
    """Images, valid sizes and names of missing cameras of a frame in which images may be None: black, of size (0, 0),
    without 2D labels. Where all are None, they are black images of full size, so that a model has something to see."""
    names = results['cam_names']
    whole = next((image.shape[:2] for image in images if image is not None), None)
    sizes = [plan.size if plan else whole or (results['images'][name]['height'], results['images'][name]['width'])
             for name, plan in zip(names, plans)]
    for i, image in enumerate(images):
        for key in ('gt_bboxes', 'gt_bboxes_labels', 'centers_2d', 'depths'):
            if image is None and key in results:
                results[key][i] = results[key][i][:0]
    filled = [np.zeros((*size, 3), np.uint8) if image is None else image for image, size in zip(images, sizes)]
    if whole is None:
        return filled, sizes, []
    return filled, list(shapes), [name for name, image in zip(names, images) if image is None]


def read_image(path: Union[str, np.ndarray], resize: float = 1.0) -> tuple[np.ndarray, int]:
    """Decode an image, a JPEG at the smallest of 1, 1/2, 1/4, 1/8 of its size that is not below ``resize``. One in
    memory, (h, w, 3) uint8 BGR, is taken as it is.

    A rotation tag (EXIF) is ignored: calibrations refer to the stored pixels.

    Returns:
        (h, w, 3) uint8 BGR, and the reduction (1, 2, 4 or 8). A pixel of a reduced image covers a whole block of the
        stored ones.

    Raises:
        OSError: No such file, or it cannot be decoded.
    """
    if isinstance(path, np.ndarray):
        return path, 1
    data = mmengine.fileio.get(path)
    reduction = max(factor for factor in REDUCED if factor == 1 or (data[:2] == JPEG and factor * resize <= 1))
    flags = REDUCED[reduction] | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    # OpenCV fills up what a truncated JPEG lacks with grey and only prints a warning
    if image is None or (data[:2] == JPEG and not has_end(data)):
        raise OSError(f'{path} is no whole image ({len(data)} bytes).')
    return image, reduction


def warp_full(image: np.ndarray, plan: ImagePlan) -> np.ndarray:
    """The planned image, made by Pillow from the full-size image."""
    (height, width), (x, y), scale = plan.size, plan.crop, plan.resize
    # What of the crop lies on the resized image, in resized pixels. Only that part is computed.
    left, top = max(x, 0), max(y, 0)
    right = min(x + width, int(plan.source[1] * scale + 1e-6))
    bottom = min(y + height, int(plan.source[0] * scale + 1e-6))
    canvas = Image.new('RGB', (width, height))
    if right > left and bottom > top:
        # The box in source pixels keeps the factor exact where source * factor is no whole number.
        box = [left / scale, top / scale, min(right / scale, plan.source[1]), min(bottom / scale, plan.source[0])]
        part = Image.fromarray(image).resize((right - left, bottom - top), Image.BICUBIC, box=box)
        canvas.paste(part, (left - x, top - y))
    if plan.flip:
        canvas = canvas.transpose(Image.FLIP_LEFT_RIGHT)
    if plan.rotate:
        canvas = canvas.rotate(plan.rotate)
    return np.array(canvas)


def warp_reduced(image: np.ndarray, plan: ImagePlan, reduction: int) -> np.ndarray:
    """The planned image, made by one bilinear warp of a reduced image."""
    # OpenCV counts pixels from the centre of the first, the plan from its corner.
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    matrix = np.linalg.inv(half) @ plan.matrix @ np.diag([reduction, reduction, 1.0]) @ half
    return cv2.warpAffine(image, matrix[:2], plan.size[::-1], flags=cv2.INTER_LINEAR)
