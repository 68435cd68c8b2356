"""The one layout of the ten numbers a box is regressed as, and its way to and from mmdet3d's boxes.

Boxes here are ``(cx, cy, cz, dx, dy, dz, yaw, vx, vy)`` in metres, rad and m/s, LiDAR frame; ``c`` is the CENTRE OF
GRAVITY, ``d`` the size along the box's own axes (length, width, height), yaw counter-clockwise from x. A code is

    cx, cy, cz, log dx, log dy, log dz, sin yaw, cos yaw, vx, vy

with the centre in metres: StreamPETR's layout (arXiv 2303.11926), not that of mmdet3d's projects/PETR.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet3d.structures import LiDARInstance3DBoxes
from torch import Tensor

from georope.registry import TASK_UTILS

CODE_SIZE = 10
CENTRE = slice(0, 3)
LOG_SIZE = slice(3, 6)
SIN, COS = 6, 7
VELOCITY = slice(8, 10)


def encode(boxes: Tensor) -> Tensor:
    """Codes (..., 10) of boxes (..., 9)."""
    centre, size, yaw, velocity = boxes.split((3, 3, 1, 2), dim=-1)
    return torch.cat((centre, size.log(), yaw.sin(), yaw.cos(), velocity), dim=-1)


def decode(codes: Tensor) -> Tensor:
    """Boxes (..., 9) of codes (..., 10); yaw lies in [-pi, pi]."""
    yaw = torch.atan2(codes[..., SIN], codes[..., COS])[..., None]
    return torch.cat((codes[..., CENTRE], codes[..., LOG_SIZE].exp(), yaw, codes[..., VELOCITY]), dim=-1)


def from_lidar_boxes(boxes: LiDARInstance3DBoxes) -> Tensor:
    """Boxes (n, 9) of mmdet3d's boxes, which store the bottom centre.

    Raises:
        ValueError: if they carry no velocity.
    """
    if boxes.tensor.shape[-1] != 9:
        raise ValueError(f'boxes need 9 numbers (with velocity, NaN where unknown), not {boxes.tensor.shape[-1]}')
    return torch.cat((boxes.gravity_center, boxes.tensor[:, 3:]), dim=-1)


def to_lidar_boxes(boxes: Tensor) -> LiDARInstance3DBoxes:
    """mmdet3d's boxes of boxes (n, 9)."""
    centre, size, others = boxes.split((3, 3, 3), dim=-1)
    # Lowered here: ``origin`` would make it copy constants to the device.
    bottom = torch.cat((centre[:, :2], centre[:, 2:] - size[:, 2:] / 2), dim=-1)
    return LiDARInstance3DBoxes(torch.cat((bottom, size, others), dim=-1), box_dim=9)


@TASK_UTILS.register_module()
class NMSFreeCoder:
    """Turns class logits and codes into boxes: the best pairs of query and class, no suppression (PETR, DETR3D).

    Args:
        post_center_range: (x, y, z minimum, x, y, z maximum), metres; boxes whose centre lies outside are dropped.
        max_num: most boxes of a sample.
        score_threshold: boxes that score less are dropped; None keeps all.
    """

    def __init__(self, post_center_range: Sequence[float], max_num: int = 300,
                 score_threshold: float | None = None) -> None:
        self.post_center_range = post_center_range
        self.max_num = max_num
        self.score_threshold = score_threshold

    def decode(self, logits: Tensor, codes: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Decode one decoder layer.

        Args:
            logits: (B, Q, classes).
            codes: (B, Q, 10).

        Returns:
            Per sample, best first: boxes (n, 9), scores (n,), labels (n,); n <= max_num. The host waits once for the
            device, for all n.
        """
        num_classes = logits.shape[-1]
        scores = logits.sigmoid().flatten(1)
        scores, index = scores.topk(min(self.max_num, scores.shape[1]))
        queries = (index // num_classes)[..., None].expand(-1, -1, CODE_SIZE)
        boxes, labels = decode(codes.gather(1, queries)), index % num_classes
        keep = torch.ones_like(scores, dtype=torch.bool)
        for axis in range(3):
            lower, upper = self.post_center_range[axis], self.post_center_range[axis + 3]
            keep &= (boxes[..., axis] >= lower) & (boxes[..., axis] <= upper)
        if self.score_threshold is not None:
            keep &= scores >= self.score_threshold
        order = keep.long().argsort(dim=1, descending=True, stable=True)  # those that stay, first
        return [(b[own[:num]], s[own[:num]], x[own[:num]])
                for b, s, x, own, num in zip(boxes, scores, labels, order, keep.sum(1).tolist())]
