"""Overlaps and match costs of 2D boxes: mmdet's copy constants to the device at every call, and the host waits."""
from __future__ import annotations

import torch
from mmdet.structures.bbox import bbox_xyxy_to_cxcywh
from mmengine.structures import InstanceData
from torch import Tensor

from georope.registry import TASK_UTILS

MIN_AREA = 1e-6  # square pixels, mmdet's


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (arXiv 1902.09630) of boxes (..., 4), x, y, x, y; leading dimensions broadcast."""
    both = _area(torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:]))
    union = (_area(a[..., :2], a[..., 2:]) + _area(b[..., :2], b[..., 2:]) - both).clamp(min=MIN_AREA)
    around = _area(torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])).clamp(min=MIN_AREA)
    iou = both / union
    return iou, iou - (around - union) / around


def _area(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).clamp(min=0).prod(-1)


@TASK_UTILS.register_module()
class GIoUCost:
    """Match cost: minus the generalised IoU of ``bboxes`` (n, 4), x, y, x, y.

    Args:
        weight: factor of the cost.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def __call__(self, pred_instances: InstanceData, gt_instances: InstanceData, img_meta: dict | None = None,
                 **kwargs) -> Tensor:
        """(predictions, objects)."""
        return -overlaps(pred_instances.bboxes[:, None], gt_instances.bboxes)[1] * self.weight


@TASK_UTILS.register_module()
class BBoxL1Cost:
    """Match cost: L1 distance of centre, width and height of ``bboxes`` (n, 4), x, y, x, y in pixels, as fractions of
    the image, ``img_meta['img_shape']`` (height, width).

    Args:
        weight: factor of the cost.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def __call__(self, pred_instances: InstanceData, gt_instances: InstanceData, img_meta: dict, **kwargs) -> Tensor:
        """(predictions, objects)."""
        height, width = img_meta['img_shape'][:2]
        predicted, true = (torch.stack((x / width, y / height, w / width, h / height), dim=-1)
                           for x, y, w, h in (bbox_xyxy_to_cxcywh(instances.bboxes).unbind(-1)
                                              for instances in (pred_instances, gt_instances)))
        return torch.cdist(predicted, true, p=1) * self.weight
