"""Ground truth of a sample, and its assignment to queries (DETR, DETR3D). The solver is mmdet's."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from mmdet.models.task_modules.assigners import HungarianAssigner
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from torch import Tensor

from georope.registry import TASK_UTILS

from . import box_code
from .cameras import sample_name


@dataclass(frozen=True)
class Targets:
    """The objects of a sample.

    Attributes:
        boxes: (n, 9), gravity centre, see ``box_code``; velocity NaN where it is unknown.
        labels: (n,), int64.
    """

    boxes: Tensor
    labels: Tensor

    @cached_property
    def codes(self) -> Tensor:
        """(n, 10)."""
        return box_code.encode(self.boxes)


def read_targets(data_samples: Sequence[Det3DDataSample], num_classes: int, device: torch.device) -> list[Targets]:
    """The objects in ``gt_instances_3d`` of each sample.

    Raises:
        ValueError: if a box is not finite (its velocity may be NaN, not infinite), has no volume, or a label is none of
            ``num_classes``; names the sample.
    """
    targets, good = [], []
    for sample in data_samples:
        boxes = box_code.from_lidar_boxes(sample.gt_instances_3d.bboxes_3d).to(device, torch.float32)
        labels = sample.gt_instances_3d.labels_3d.to(device, torch.int64)
        target = Targets(boxes, labels)
        finite = target.codes.isfinite()
        finite[:, box_code.VELOCITY] |= target.codes[:, box_code.VELOCITY].isnan()
        good.append((finite.all(-1) & (labels >= 0) & (labels < num_classes)).all())
        targets.append(target)
    for sample, target, ok in zip(data_samples, targets, torch.stack(good).tolist()):
        if not ok:
            raise ValueError(f'sample {sample_name(sample.metainfo)}: its boxes must be finite with positive sizes '
                             f'(velocity may be NaN) and its labels below {num_classes}, but they are '
                             f'{target.boxes.tolist()}, {target.labels.tolist()}')
    return targets


@TASK_UTILS.register_module()
class BBox3DL1Cost:
    """Match cost: L1 distance of box codes. Predictions and ground truth carry ``codes`` (n, 10).

    A ground-truth number that is NaN (unknown velocity) adds nothing to the cost.

    Args:
        weight: factor of the cost.
        with_velocity: compare velocities too; the references do not.
    """

    def __init__(self, weight: float = 1.0, with_velocity: bool = False) -> None:
        self.weight = weight
        self.with_velocity = with_velocity

    def __call__(self, pred_instances: InstanceData, gt_instances: InstanceData, img_meta: dict | None = None,
                 **kwargs) -> Tensor:
        """(queries, objects)."""
        predicted, true = pred_instances.codes, gt_instances.codes
        if not self.with_velocity:
            velocity = box_code.VELOCITY.start
            predicted, true = predicted[:, :velocity], true[:, :velocity]
        cost = (predicted[:, None] - true).abs()
        return torch.where(true.isnan(), 0, cost).sum(-1) * self.weight


@TASK_UTILS.register_module()
class HungarianAssigner3D(HungarianAssigner):
    """mmdet's HungarianAssigner; its costs may be georope's, whatever the default scope."""

    def __init__(self, match_costs: Sequence[dict]) -> None:
        self.match_costs = [TASK_UTILS.build(cost) for cost in match_costs]


def match(assigner: HungarianAssigner, logits: Tensor, codes: Tensor, targets: Sequence[Targets],
          code_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Assign objects to queries, one to one, sample by sample.

    Args:
        assigner: compares predictions ``scores`` (logits), ``codes`` with ground truth ``labels``, ``codes``.
        logits: (B, Q, classes).
        codes: (B, Q, 10).
        targets: of each sample.
        code_weights: (10,) by which the codes of both sides are multiplied before they are compared.

    Returns:
        labels (B, Q), ``classes`` for background; positive (P,), indices of matched queries into B * Q; their objects'
        codes (P, 10).
    """
    num_query, num_classes = logits.shape[1:]
    labels = torch.full(logits.shape[:2], num_classes, device=logits.device)
    positive, positive_codes = [], []
    for i, target in enumerate(targets):
        result = assigner.assign(
            InstanceData(scores=logits[i].detach(), codes=codes[i].detach() * code_weights),
            InstanceData(labels=target.labels, codes=target.codes * code_weights))
        queries = (result.gt_inds > 0).nonzero()[:, 0]
        objects = result.gt_inds[queries] - 1
        labels[i, queries] = target.labels[objects]
        positive.append(i * num_query + queries)
        positive_codes.append(target.codes[objects])
    return labels, torch.cat(positive), torch.cat(positive_codes)
