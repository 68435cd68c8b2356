"""Rotation, scale and translation of the LiDAR frame."""
from collections.abc import Sequence

import numpy as np
from mmcv.transforms import BaseTransform

from georope.registry import TRANSFORMS


@TRANSFORMS.register_module()
class BEVAug(BaseTransform):
    """Rotate about z, then scale, then translate the LiDAR frame with everything in it.

    With ``T`` mapping old points to new ones, boxes and velocities are moved by ``T`` and ``lidar2cam``, ``lidar2img``,
    ``lidar2global`` are multiplied by ``inv(T)`` from the right: every point keeps its pixels, its depth in the cameras
    and its global position. A scale becomes part of ``lidar2cam`` and ``lidar2global``. A drawn angle ``a`` rotates
    points by ``-a`` (counter-clockwise is positive), the direction of the StreamPETR repository. Random numbers come
    from numpy's global generator in the order: angle, scale, translation.

    Args:
        rot_range: Smallest and largest angle in radians.
        scale_ratio_range: Smallest and largest scale.
        translation_std: Standard deviations of the translation in x, y, z in metres.

    Changes ``lidar2cam``, ``lidar2img`` (N, 4, 4), ``lidar2global`` (4, 4) and, where present, ``gt_bboxes_3d``.
    """

    def __init__(self,
                 rot_range: Sequence[float] = (-0.3925, 0.3925),
                 scale_ratio_range: Sequence[float] = (0.95, 1.05),
                 translation_std: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        self.rot_range, self.scale_ratio_range = tuple(rot_range), tuple(scale_ratio_range)
        self.translation_std = tuple(translation_std)

    def transform(self, results: dict) -> dict:
        angle = -np.random.uniform(*self.rot_range)
        scale = np.random.uniform(*self.scale_ratio_range)
        translation = np.random.normal(scale=self.translation_std, size=3)

        cos, sin = np.cos(angle), np.sin(angle)
        moved = np.eye(4)
        moved[:3, :3] = scale * np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
        moved[:3, 3] = translation
        inverse = np.linalg.inv(moved)
        for key in ('lidar2cam', 'lidar2img', 'lidar2global'):
            results[key] = results[key] @ inverse
        if 'gt_bboxes_3d' in results:
            boxes = results['gt_bboxes_3d']
            boxes.rotate(angle)
            boxes.scale(scale)
            boxes.translate(translation)
        return results

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(rot_range={self.rot_range}, scale_ratio_range={self.scale_ratio_range}, '
                f'translation_std={self.translation_std})')
