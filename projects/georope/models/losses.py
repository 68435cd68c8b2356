"""Losses that mmdet has only with a compiled CUDA operator."""
from mmdet.models.losses import FocalLoss as MMDetFocalLoss
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from torch import Tensor
from torch.nn import functional as F

from georope.registry import MODELS


@MODELS.register_module()
class FocalLoss(MMDetFocalLoss):
    """mmdet's sigmoid focal loss on its plain torch path on every device, so that mmcv built without CUDA trains."""

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor = None, avg_factor: float = None) -> Tensor:
        """pred (n, classes) logits, target (n,) with ``classes`` for background -> scalar."""
        one_hot = F.one_hot(target, pred.shape[-1] + 1)[:, :-1]
        return self.loss_weight * py_sigmoid_focal_loss(
            pred, one_hot, weight, gamma=self.gamma, alpha=self.alpha, reduction=self.reduction, avg_factor=avg_factor)
