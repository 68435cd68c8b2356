"""Ground truth of a sample, and its assignment to queries (DETR, DETR3D). The costs are mmdet's or of their kind, the
solver is SciPy's."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from mmdet.models.task_modules.assigners import BaseAssigner, HungarianAssigner
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from georope.errors import InputError
from georope.registry import TASK_UTILS
from georope.rope.transfer import to_device

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
    boxes, labels = [], []
    for sample in data_samples:
        truth = sample.gt_instances_3d
        target = Targets(box_code.from_lidar_boxes(truth.bboxes_3d).to('cpu', torch.float32),
                         truth.labels_3d.to('cpu', torch.int64))
        finite = target.codes.isfinite()
        finite[:, box_code.VELOCITY] |= target.codes[:, box_code.VELOCITY].isnan()
        bad = ~(finite.all(-1) & (target.labels >= 0) & (target.labels < num_classes))
        if bad.any():
            label, box = target.labels[bad][0].item(), target.boxes[bad][0].tolist()
            raise InputError(f'sample {sample_name(sample.metainfo)}: its boxes must be finite with positive sizes '
                             f'(velocity may be NaN) and its labels below num_classes={num_classes}; {int(bad.sum())} '
                             f'of {len(bad)} are not, the first has label {label} and is {box}. Labels are positions '
                             'in metainfo.classes of the dataset: num_classes of the head is their number.')
        boxes.append(target.boxes)
        labels.append(target.labels)
    counts = [len(own) for own in labels]
    boxes, labels = (to_device(torch.cat(x), device).split(counts) for x in (boxes, labels))
    return [Targets(*pair) for pair in zip(boxes, labels)]


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


def solve(assigner: BaseAssigner, problems: Sequence[tuple[InstanceData, InstanceData]],
          img_meta: dict | None = None) -> Tensor:
    """Assign objects to predictions, one to one, in several problems at once.

    The costs of mmdet's HungarianAssigner, and of what inherits its ``assign``, are computed on the device; the host
    waits once, for all of them. Any other assigner is called problem by problem.

    Args:
        assigner: compares predictions and ground truth.
        problems: predictions and ground truth of each.
        img_meta: what the costs get as such.

    Returns:
        (2, P) int64, on the CPU: matched predictions, ascending, and their objects; both are counted through all
        problems.
    """
    if type(assigner).assign is HungarianAssigner.assign:
        pairs = _solve_together(assigner.match_costs, problems, img_meta)
    else:
        indices = [assigner.assign(*problem, img_meta).gt_inds.cpu() for problem in problems]
        pairs = [torch.stack((queries := (index > 0).nonzero()[:, 0], index[queries] - 1)) for index in indices]
    sizes = torch.tensor([(len(predictions), len(truth)) for predictions, truth in problems])
    return torch.cat([pair + first[:, None] for pair, first in zip(pairs, sizes.cumsum(0) - sizes)], dim=1)


def _solve_together(match_costs: Sequence[Callable[..., Tensor]],
                    problems: Sequence[tuple[InstanceData, InstanceData]], img_meta: dict | None) -> list[Tensor]:
    """(2, n) of each problem, counted in it."""
    costs = [torch.stack([cost(pred_instances=predictions, gt_instances=truth, img_meta=img_meta)
                          for cost in match_costs]).sum(0).detach() if len(truth) else None
             for predictions, truth in problems]
    flat = [cost.flatten() for cost in costs if cost is not None]
    values = iter(torch.cat(flat).cpu().split([len(cost) for cost in flat]) if flat else ())
    return [torch.zeros(2, 0, dtype=torch.int64) if cost is None else
            torch.from_numpy(np.stack(linear_sum_assignment(next(values).view(cost.shape)))) for cost in costs]


def match(assigner: BaseAssigner, logits: Tensor, codes: Tensor, targets: Sequence[Targets],
          code_weights: Tensor) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
    """Assign objects to queries, one to one, in every layer and sample.

    Args:
        assigner: compares predictions ``scores`` (logits), ``codes`` with ground truth ``labels``, ``codes``.
        logits: (layers, B, Q, classes).
        codes: (layers, B, Q, 10).
        targets: of each sample.
        code_weights: (10,) by which the codes of both sides are multiplied before they are compared.

    Returns:
        labels (layers, B, Q), ``classes`` for background; of each layer, indices (P,) of matched queries into B * Q and
        their objects' codes (P, 10). An assigner of yours may match more objects in one layer than in another.
    """
    layers, batch, num_query, num_classes = logits.shape
    truths = [InstanceData(labels=target.labels, codes=target.codes * code_weights) for target in targets]
    scores, weighted = logits.detach(), codes.detach() * code_weights
    pairs = solve(assigner, [(InstanceData(scores=scores[i, b], codes=weighted[i, b]), truths[b])
                             for i in range(layers) for b in range(batch)])
    per_layer, objects_per_layer = batch * num_query, sum(len(target.labels) for target in targets)
    counts = torch.bincount(pairs[0] // per_layer, minlength=layers).tolist()
    pairs[1] %= max(objects_per_layer, 1)  # every layer has the same objects
    queries, objects = to_device(pairs, logits.device)
    labels = torch.full((layers * per_layer, ), num_classes, device=logits.device)
    labels.scatter_(0, queries, torch.cat([target.labels for target in targets])[objects])
    true_codes = torch.cat([target.codes for target in targets])[objects]
    return labels.view(layers, batch, num_query), (queries % per_layer).split(counts), true_codes.split(counts)
