"""Test-time augmentation by mirroring: what a mirrored rig would have seen of a mirrored world, and its boxes back."""
from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
import torch
from mmdet3d.structures import Det3DDataSample, LiDARInstance3DBoxes
from mmengine.structures import InstanceData
from torch import Tensor

from .cameras import stack_matrices

_MIRROR = np.diag([-1., 1, 1, 1])  # of x: of the LiDAR frame's (left and right on nuScenes), of a camera's


def mirror_frames(imgs: Tensor, data_samples: Sequence[Det3DDataSample]) -> tuple[Tensor, list[Det3DDataSample]]:
    """The frames of the mirrored world (x -> -x in the LiDAR frame), seen by the mirrored rig.

    Images are flipped left to right within their valid size; ``lidar2cam`` and ``cam2img`` are again a rotation with a
    translation and intrinsics, so that nothing tells the frames from recorded ones. Mirroring twice changes nothing.

    Args:
        imgs: (B, N, 3, height, width), padded on the right and below.
        data_samples: with ``lidar2img``, ``cam2img``, where present ``lidar2cam``, and ``img_shape``.
    """
    mirrored, samples = imgs.clone(), []
    for own, sample in zip(mirrored, data_samples):
        meta, cameras = dict(sample.metainfo), len(own)
        sizes = np.broadcast_to(np.asarray(meta['img_shape'], dtype=int)[..., :2], (cameras, 2))
        for image, (height, width) in zip(own, sizes.tolist()):
            image[:, :height, :width] = image[:, :height, :width].flip(-1)
        flip = np.tile(np.eye(4), (cameras, 1, 1))
        flip[:, 0, 0], flip[:, 0, 2] = -1, sizes[:, 1]
        for key, left, right in (('lidar2img', flip, _MIRROR), ('cam2img', flip, _MIRROR),
                                 ('lidar2cam', _MIRROR, _MIRROR)):
            if key in meta:
                size = min(np.asarray(meta[key]).shape[-2:])
                matrices = stack_matrices([meta], key, cameras, size)[0].numpy()
                meta[key] = left[..., :size, :size] @ matrices @ right[:size, :size]
        samples.append(Det3DDataSample(metainfo=meta))
    return mirrored, samples


def mirror_boxes(boxes: LiDARInstance3DBoxes) -> LiDARInstance3DBoxes:
    """Boxes (n, 9) of the mirrored world."""
    x, others, yaw, velocity_x, velocity_y = boxes.tensor.split((1, 5, 1, 1, 1), dim=-1)
    yaw = pi - yaw
    yaw = torch.atan2(yaw.sin(), yaw.cos())
    return LiDARInstance3DBoxes(torch.cat((-x, others, yaw, -velocity_x, velocity_y), dim=-1), box_dim=9)


def merge(first: InstanceData, second: InstanceData, distance: float, max_num: int) -> InstanceData:
    """One result of two for the same frame, whichever comes first.

    Boxes of one class at most ``distance`` metres apart (centres, from above) make a pair, those of highest scores
    first: its box is the mean of both, weighted by score, and its score their mean. A box without partner keeps half of
    its score.

    Args:
        first, second: with ``bboxes_3d`` (9 dims), ``scores_3d``, ``labels_3d``.
        max_num: most boxes of the result, best first.
    """
    results = [[part.cpu() for part in (result.bboxes_3d.tensor, result.scores_3d, result.labels_3d)]
               for result in (first, second)]
    (boxes, scores, labels), (others, other_scores, other_labels) = results
    far = torch.cdist(boxes[:, :2].double(), others[:, :2].double(), compute_mode='donot_use_mm_for_euclid_dist')
    rows, columns = ((far <= distance) & (labels[:, None] == other_labels)).nonzero(as_tuple=True)
    order = (scores[rows] + other_scores[columns]).argsort(descending=True, stable=True)
    free, other_free, pairs = [True] * len(boxes), [True] * len(others), []
    for row, column in zip(rows[order].tolist(), columns[order].tolist()):
        if free[row] and other_free[column]:
            free[row] = other_free[column] = False
            pairs.append((row, column))
    rows, columns = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    weights = torch.stack((scores[rows], other_scores[columns]))
    weights = (weights / weights.sum(0).clamp(min=1e-12))[..., None]
    both = torch.stack((boxes[rows], others[columns]))
    means = (both * weights).sum(0)
    means[:, 6] = torch.atan2(*((angle * weights[..., 0]).sum(0) for angle in (both[..., 6].sin(), both[..., 6].cos())))
    alone, other_alone = torch.tensor(free, dtype=torch.bool), torch.tensor(other_free, dtype=torch.bool)
    merged = torch.cat((means, boxes[alone], others[other_alone]))
    merged_scores = torch.cat((scores[rows] + other_scores[columns], scores[alone], other_scores[other_alone])) / 2
    merged_labels = torch.cat((labels[rows], labels[alone], other_labels[other_alone]))
    best = merged_scores.argsort(descending=True, stable=True)[:max_num]
    device = first.scores_3d.device
    return InstanceData(bboxes_3d=LiDARInstance3DBoxes(merged[best].to(device), box_dim=9),
                        scores_3d=merged_scores[best].to(device), labels_3d=merged_labels[best].to(device))
