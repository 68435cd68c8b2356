"""Losses that mmdet has only with a compiled CUDA operator, and the check of all losses."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet.models.losses import FocalLoss as MMDetFocalLoss
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from torch import Tensor
from torch.nn import functional as F

from georope.registry import MODELS

from .cameras import sample_name


def check_losses(losses: dict[str, Tensor], metas: Sequence[dict]) -> None:
    """Raise FloatingPointError with the names of the samples if a loss is not finite."""
    if not torch.stack(list(losses.values())).isfinite().all():
        values = {name: loss.item() for name, loss in losses.items()}
        raise FloatingPointError(
            f'losses are not finite for samples {[sample_name(meta) for meta in metas]}: {values}')


@MODELS.register_module()
class FocalLoss(MMDetFocalLoss):
    """mmdet's sigmoid focal loss on its plain torch path on every device, so that mmcv built without CUDA trains."""

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor = None, avg_factor: float = None) -> Tensor:
        """pred (n, classes) logits, target (n,) with ``classes`` for background -> scalar."""
        one_hot = F.one_hot(target, pred.shape[-1] + 1)[:, :-1]
        return self.loss_weight * py_sigmoid_focal_loss(
            pred, one_hot, weight, gamma=self.gamma, alpha=self.alpha, reduction=self.reduction, avg_factor=avg_factor)
