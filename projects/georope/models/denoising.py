"""Denoising queries: noisy copies of the true boxes that the decoder learns to repair (DN-DETR, arXiv 2203.01305)."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from georope.rope.transfer import to_device

from . import box_code
from .assignment import Targets


@dataclass(frozen=True)
class DenoisingQueries:
    """Noisy objects of a batch, laid out in ``groups * size`` queries per sample; ``size`` is the number of
    objects of the sample that has most.

    The M noisy objects are ordered by group, then sample, then object.

    Attributes:
        reference_points: (B, groups * size, 3), normalised; 0 where a query is empty.
        empty: bool (B, groups * size), True where a query holds no object.
        mask: bool (groups * size + Q, groups * size + Q), True where a query must not see another; the denoising
            queries come first.
        sample, query: (M,) indices of the sample and the query of each noisy object.
        labels: (M,) classes, or ``num_classes`` (background) where the noise carried it too far away.
        codes: (M, 10) codes of the clean boxes.
    """

    reference_points: Tensor
    empty: Tensor
    mask: Tensor
    sample: Tensor
    query: Tensor
    labels: Tensor
    codes: Tensor


class Denoising:
    """Makes denoising queries.

    The centre of a box moves by up to ``noise_scale`` half sizes along each axis of the LiDAR frame (the box's yaw is
    ignored, as in StreamPETR). Moved by more than ``split`` half sizes it becomes background; its box is still
    regressed.

    Args:
        groups: noisy copies of every object.
        noise_scale: largest move along an axis, in half sizes; 0 gives clean centres.
        split: largest move, in half sizes, that keeps the class.
        loss_weight: weight of the denoising losses.
    """

    def __init__(self, groups: int = 10, noise_scale: float = 1.0, split: float = 0.75,
                 loss_weight: float = 1.0) -> None:
        if groups < 1 or noise_scale < 0 or split <= 0:
            raise ValueError('denoising needs groups >= 1, noise_scale >= 0 and split > 0, not '
                             f'groups={groups}, noise_scale={noise_scale}, split={split}')
        self.groups = groups
        self.noise_scale = noise_scale
        self.split = split
        self.loss_weight = loss_weight

    @property
    def positive_share(self) -> float:
        """Expected share of noisy objects that keep their class: a ball of radius ``split`` in the cube of moves."""
        return min(math.pi / 6 * (self.split / self.noise_scale) ** 3, 1.0) if self.noise_scale else 1.0

    def sample_noise(self, num: int, device: torch.device) -> Tensor:
        """Uniform noise in [0, 1), (num, 3)."""
        return torch.rand(num, 3, device=device)

    def __call__(self, targets: Sequence[Targets], pc_range: Tensor, num_query: int,
                 num_classes: int) -> DenoisingQueries:
        """Make the queries of a batch.

        Args:
            targets: of each sample; any may be without objects.
            pc_range: (6,), metres, that normalises the reference points.
            num_query: the learned queries behind the denoising ones.
            num_classes: label of the background.
        """
        device = pc_range.device
        counts = [len(target.labels) for target in targets]
        size = max(counts)
        boxes = torch.cat([target.boxes for target in targets]).repeat(self.groups, 1)
        labels = torch.cat([target.labels for target in targets]).repeat(self.groups)
        sample = torch.cat([torch.full((count, ), i) for i, count in enumerate(counts)]).repeat(self.groups)
        query = torch.cat([torch.arange(count) for count in counts]).repeat(self.groups)
        query += size * torch.arange(self.groups).repeat_interleave(sum(counts))
        sample, query = to_device(torch.stack((sample, query)), device)

        move = (2 * self.sample_noise(len(boxes), device) - 1) * self.noise_scale
        lower, upper = pc_range.chunk(2)
        centre = ((boxes[:, :3] + move * boxes[:, 3:6] / 2 - lower) / (upper - lower)).clamp(0, 1)
        labels = torch.where(move.norm(dim=-1) > self.split, num_classes, labels)

        reference_points = centre.new_zeros(len(targets), self.groups * size, 3)
        reference_points[sample, query] = centre
        empty = torch.ones(reference_points.shape[:2], dtype=torch.bool, device=device)
        empty[sample, query] = False
        group = torch.arange(self.groups, device=device).repeat_interleave(size)
        group = F.pad(group, (0, num_query), value=-1)
        mask = (group >= 0) & (group != group[:, None])
        return DenoisingQueries(reference_points, empty, mask, sample, query, labels, box_code.encode(boxes))
