"""From a checkpoint to boxes without info file, data root or runner:

    detector = Detector.from_checkpoint('configs/petr/...py', 'epoch_24.pth', device='cuda')
    boxes, scores, names = detector(images, cam2img=cam2img, lidar2cam=lidar2cam)

    stream = detector.stream()                                       # StreamPETR: one frame after the other
    boxes, scores, names = stream(images, lidar2img, lidar2global=pose, timestamp=seconds, scene='drive 7')

Images pass the config's own test pipeline, so that results are those of ``tools/test.py``.
"""
from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, Union

import numpy as np
import torch
from mmdet3d.structures import Box3DMode, Det3DDataSample, LiDARInstance3DBoxes
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.device import get_device
from mmengine.registry import DefaultScope
from PIL import Image
from scipy.linalg import rq
from torch import nn

from georope.datasets.calibration import as_4x4, as_intrinsics, as_pose
from georope.engine.checkpoint import load_from_local, read_weights
from georope.engine.hooks import CheckWeightsHook
from georope.registry import MODELS

ImageLike = Union[str, Path, np.ndarray, Image.Image]


class Detections(NamedTuple):
    """The n boxes of a frame, best first.

    Attributes:
        boxes: (n, 9) float32, LiDAR frame: centre of gravity x, y, z, length, width, height in metres, yaw in rad
            counter-clockwise from x, velocity x, y in m/s.
        scores: (n,) float32, 0 to 1.
        names: n class names.
    """

    boxes: np.ndarray
    scores: np.ndarray
    names: list[str]


class Detector:
    """A trained model and its test pipeline; any number of cameras, one frame per call.

    Args:
        model: the detector, in evaluation mode.
        pipeline: transforms of the test, from ``ImageAug`` to ``PackCameraInputs``.
        classes: names by label.
    """

    def __init__(self, model: nn.Module, pipeline: Sequence[dict], classes: Sequence[str]) -> None:
        self.model, self.classes = model, list(classes)
        model.eval()
        self.pipeline = Compose(list(pipeline))

    @classmethod
    def from_checkpoint(cls, config: str | Path | Config, checkpoint: str | Path,
                        device: str | None = None) -> Detector:
        """A config's model with the weights of a checkpoint, which must fit exactly.

        Args:
            config: path of the config, or the config; its ``test_dataloader`` gives pipeline and classes.
            checkpoint: path of the checkpoint.
            device: ``'cuda:0'``, ``'cpu'``, ...; None for a GPU if there is one.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            RuntimeError: the checkpoint is of another model; names the tensors.
        """
        cfg = config if isinstance(config, Config) else Config.fromfile(config)
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope', 'mmdet3d')):
            model = MODELS.build(cfg.model)
            loaded = load_from_local(str(checkpoint), map_location='cpu')
            CheckWeightsHook('test').after_load_checkpoint(SimpleNamespace(model=model, cfg=cfg), loaded)
            model.load_state_dict(read_weights(loaded), strict=False)
            dataset = cfg.test_dataloader.dataset
            return cls(model.to(device or get_device()), dataset.pipeline, dataset.metainfo.classes)

    @property
    def remembers(self) -> bool:
        """Whether the model has a memory (StreamPETR)."""
        return hasattr(self.model.pts_bbox_head, 'memory')

    def __call__(self, images: Sequence[ImageLike], lidar2img=None, *, cam2img=None, lidar2cam=None) -> Detections:
        """The boxes of one frame by itself; a model with a memory starts it with an empty one.

        Args:
            images: N images: paths, arrays (h, w, 3) uint8 in OpenCV's order BGR, or PIL images. Sizes may differ.
            lidar2img: (N, 4, 4), LiDAR point -> (u d, v d, d, 1), u and v in pixels of the given images, d in metres;
                instead of ``cam2img`` and ``lidar2cam``.
            cam2img: (N, 3 or 4, 3 or 4), camera matrices.
            lidar2cam: (N, 4, 4), rigid.

        Raises:
            ValueError: calibration and images do not go together, or a matrix is none; names the camera.
            OSError: an image is missing or broken; names the camera.
        """
        sample = self.predict(images, lidar2img, cam2img=cam2img, lidar2cam=lidar2cam)
        return self.detections(sample)

    def stream(self) -> Stream:
        """A new stream of frames with a memory of its own; several may run side by side."""
        return Stream(self)

    def predict(self, images: Sequence[ImageLike], lidar2img=None, *, cam2img=None, lidar2cam=None,
                cameras: Sequence[str] | None = None, token: str = 'frame', **metas) -> Det3DDataSample:
        """As ``__call__``, but the data sample with ``pred_instances_3d``, as mmdet3d knows it.

        Args:
            cameras: N names, for messages; default ``camera 0``, ...
            token: name of the frame, for messages.
            metas: further meta information of the sample.
        """
        if self.remembers and 'ego_pose' not in metas:
            return Stream(self).predict(images, lidar2img, cam2img=cam2img, lidar2cam=lidar2cam, cameras=cameras,
                                        token=token, lidar2global=np.eye(4), timestamp=0.0)
        names = list(cameras) if cameras is not None else [f'camera {i}' for i in range(len(images))]
        if not names or len(names) != len(images):
            raise ValueError(f'frame {token}: {len(images)} images and {len(names)} cameras')
        cam2img, lidar2cam = _calibration(names, f'frame {token}: ', lidar2img, cam2img, lidar2cam)
        pixels = [_pixels(image, f'frame {token}, {name}') for image, name in zip(images, names)]
        sizes = [image.shape[:2] if isinstance(image, np.ndarray) else (None, None) for image in pixels]
        frame = dict(
            token=token, cam_names=names, img_path=pixels, cam2img=cam2img, lidar2cam=lidar2cam,
            lidar2img=cam2img @ lidar2cam, box_type_3d=LiDARInstance3DBoxes, box_mode_3d=Box3DMode.LIDAR,
            images={name: dict(img_path=image, height=height, width=width)
                    for name, image, (height, width) in zip(names, pixels, sizes)}, **metas)
        with torch.no_grad():
            return self.model.test_step(pseudo_collate([self.pipeline(frame)]))[0]

    def detections(self, sample: Det3DDataSample) -> Detections:
        """The boxes of a data sample."""
        found = sample.pred_instances_3d
        boxes = torch.cat((found.bboxes_3d.gravity_center, found.bboxes_3d.tensor[:, 3:]), dim=1)
        return Detections(boxes.cpu().numpy(), found.scores_3d.cpu().numpy(),
                          [self.classes[label] for label in found.labels_3d.tolist()])


class Stream:
    """Frames of a drive, in order, for a model that remembers (``Detector.stream``).

    Raises:
        ValueError: the model has no memory.
    """

    def __init__(self, detector: Detector) -> None:
        if not detector.remembers:
            raise ValueError(f'{type(detector.model).__name__} remembers nothing: call the detector frame by frame')
        self.detector = detector
        self._memory = copy.copy(detector.model.pts_bbox_head.memory)
        self.reset()

    def reset(self) -> None:
        """Forget: the next frame is the first one of its scene."""
        self._memory.reset()
        self._scene = self._start = None

    def __call__(self, images: Sequence[ImageLike], lidar2img=None, *, lidar2global, timestamp: float, scene: str = '',
                 cam2img=None, lidar2cam=None, remember: bool = True) -> Detections:
        """The boxes of the next frame.

        Args:
            images, lidar2img, cam2img, lidar2cam: see ``Detector``.
            lidar2global: (4, 4), LiDAR frame -> a frame that is fixed for the scene, metres.
            timestamp: seconds; must not fall within a scene.
            scene: name of the scene; another one than that of the frame before starts anew, as ``reset`` does.
            remember: False for a frame that sees the memory and leaves no trace in it, such as those between the key
                frames a model was trained on.

        Raises:
            ValueError: the frame is earlier than the one before it, or see ``Detector``.
        """
        return self.detector.detections(self.predict(
            images, lidar2img, lidar2global=lidar2global, timestamp=timestamp, scene=scene, cam2img=cam2img,
            lidar2cam=lidar2cam, remember=remember))

    def predict(self, *args, lidar2global, timestamp: float, scene: str = '', remember: bool = True,
                **kwargs) -> Det3DDataSample:
        """As ``__call__``, but the data sample; see ``Detector.predict``."""
        lidar2global = as_pose(lidar2global, f'frame {kwargs.get("token", "frame")}: lidar2global')
        memory = self._memory if remember else copy.copy(self._memory)
        start = timestamp if scene != self._scene or self._start is None else self._start
        self.detector.model.pts_bbox_head.memory = memory
        # As in a data set: float64 seconds since the scene's first frame.
        sample = self.detector.predict(
            *args, **kwargs, ego_pose=lidar2global, lidar2global=lidar2global, timestamp=float(timestamp) - start,
            scene_token=scene, prev_exists=scene == self._scene)
        if remember:
            self._scene, self._start = scene, start
        return sample


def _pixels(image: ImageLike, where: str) -> str | np.ndarray:
    """A path, or (h, w, 3) uint8 BGR."""
    if isinstance(image, (str, Path)):
        return str(image)
    if isinstance(image, Image.Image):
        return np.ascontiguousarray(np.asarray(image.convert('RGB'))[..., ::-1])
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f'an array {image.shape} {image.dtype}' if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f'{where}: the image is {what}; give a path, a PIL image or (h, w, 3) uint8 in the order BGR')
    return image


def _calibration(names: Sequence[str], where: str, lidar2img, cam2img, lidar2cam) -> tuple[np.ndarray, np.ndarray]:
    """Camera matrices and rigid poses (N, 4, 4), float64."""
    pair = dict(cam2img=cam2img, lidar2cam=lidar2cam)
    given = {key: value for key, value in dict(lidar2img=lidar2img, **pair).items() if value is not None}
    if set(given) not in ({'lidar2img'}, set(pair)):
        raise ValueError(f'{where}give lidar2img, or cam2img and lidar2cam; here are {sorted(given) or "none of them"}')
    for key, value in given.items():
        if len(value) != len(names):
            raise ValueError(f'{where}{len(names)} images and {len(value)} matrices {key}')
    if lidar2img is not None:
        pairs = [_decompose(matrix, f'{where}{name}: lidar2img') for name, matrix in zip(names, lidar2img)]
    else:
        pairs = [(as_intrinsics(first, f'{where}{name}: cam2img'), as_pose(second, f'{where}{name}: lidar2cam'))
                 for name, first, second in zip(names, cam2img, lidar2cam)]
    first, second = zip(*pairs)
    return np.stack(first), np.stack(second)


def _decompose(lidar2img, where: str) -> tuple[np.ndarray, np.ndarray]:
    """``lidar2img`` as camera matrix and rigid pose. A mirrored image gets a negative focal length."""
    matrix = as_intrinsics(as_4x4(lidar2img, where), where)
    depth = np.linalg.norm(matrix[2, :3])
    if abs(depth - 1) > 1e-3 or np.abs(matrix[3] - (0, 0, 0, 1)).max() > 0:
        raise ValueError(f'{where} must map to (u d, v d, d, 1) with d in metres: its third row has length {depth:g}, '
                         f'its fourth is {matrix[3].tolist()}')
    upper, rotation = rq(matrix[:3, :3])
    signs = np.sign(np.diag(upper))
    signs[0] *= np.sign(np.linalg.det(rotation)) * signs.prod()  # a rotation, not a mirror
    cam2img, lidar2cam = np.eye(4), np.eye(4)
    cam2img[:3, :3], lidar2cam[:3, :3] = upper * signs, signs[:, None] * rotation
    lidar2cam[:3, 3] = np.linalg.solve(cam2img[:3, :3], matrix[:3, 3])
    return cam2img, lidar2cam
