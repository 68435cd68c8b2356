"""mmdet's losses without compiled CUDA operators or waits for the device, and the checks that all is finite."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet.models.losses import FocalLoss as MMDetFocalLoss
from mmdet.models.losses import L1Loss as MMDetL1Loss
from mmdet.models.losses import l1_loss
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from mmdet.models.losses.utils import weight_reduce_loss
from torch import Tensor, nn
from torch.nn import functional as F

from georope.registry import MODELS

from .cameras import sample_name


def check_losses(losses: dict[str, Tensor], metas: Sequence[dict]) -> None:
    """Raise FloatingPointError with the names of the samples if a loss is not finite."""
    if not torch.stack(list(losses.values())).isfinite().all():
        values = {name: loss.item() for name, loss in losses.items()}
        raise FloatingPointError(
            f'losses are not finite for samples {[sample_name(meta) for meta in metas]}: {values}')


def check_predictions(predictions: Sequence[Tensor], metas: Sequence[dict], kind: str = 'predictions') -> None:
    """Raise FloatingPointError with the names of the samples of which a value in the tensors (B, ...) or (B * N, ...)
    is not finite: nothing after the head could tell where it comes from."""
    finite = torch.stack([x.isfinite().reshape(len(metas), -1).all(1) for x in predictions]).all(0).tolist()
    if not all(finite):
        bad = [sample_name(meta) for meta, ok in zip(metas, finite) if not ok]
        raise FloatingPointError(f'{kind} are not finite for samples {bad}; check their images and calibration, or the '
                                 'learning rate')


@MODELS.register_module()
class FocalLoss(MMDetFocalLoss):
    """mmdet's sigmoid focal loss on its plain torch path on every device, so that mmcv built without CUDA trains."""

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor | None = None,
                avg_factor: float | None = None) -> Tensor:
        """pred (n, classes) logits, target (n,) with ``classes`` for background -> scalar."""
        one_hot = F.one_hot(target, pred.shape[-1] + 1)[:, :-1]
        return self.loss_weight * py_sigmoid_focal_loss(
            pred, one_hot, weight, gamma=self.gamma, alpha=self.alpha, reduction=self.reduction, avg_factor=avg_factor)


@MODELS.register_module()
class L1Loss(MMDetL1Loss):
    """mmdet's, without its question on the host whether any weight is positive."""

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor | None = None,
                avg_factor: float | None = None) -> Tensor:
        """pred, target, weight (n, d) -> scalar."""
        return self.loss_weight * l1_loss(pred, target, weight, reduction=self.reduction, avg_factor=avg_factor)


@MODELS.register_module()
class QualityFocalLoss(nn.Module):
    """mmdet's, computed for all rows at once instead of for those that it picks out, with the qualities as targets.

    Args:
        beta: exponent of the distance between sigmoid and quality.
        loss_weight: factor of the loss.
    """

    def __init__(self, beta: float = 2.0, loss_weight: float = 1.0) -> None:
        super().__init__()
        self.beta, self.loss_weight = beta, loss_weight

    def forward(self, pred: Tensor, target: tuple[Tensor, Tensor], avg_factor: float | None = None) -> Tensor:
        """pred (n, classes) logits, target: labels (n,), ``classes`` for background, and qualities (n,) -> scalar."""
        labels, quality = target
        one_hot = F.one_hot(labels, pred.shape[-1] + 1)[:, :-1].bool()
        wanted = torch.where(one_hot, quality[:, None], 0)
        loss = F.binary_cross_entropy_with_logits(pred, wanted, reduction='none')
        loss = (loss * (wanted - pred.sigmoid()).abs().pow(self.beta)).sum(1)
        return self.loss_weight * weight_reduce_loss(loss, avg_factor=avg_factor)
