"""Warms up a backbone where no pretrained weights can be had: which object does each token show? (our choice)"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from georope.registry import MODELS
from georope.rope.transfer import to_device


@MODELS.register_module()
class TokenClassifierHead(BaseModule):
    """A head for ``PETR``: a 1x1 convolution that names the class each cell of the feature map shows.

    It makes a stand-in for weights of ImageNet or nuImages: a detector takes the trained backbone and neck by
    ``load_from``.

    Args:
        num_classes: object classes; one more is the background.
        in_channels: channels of the feature map.
        stride: pixels per cell of the feature map.
        background_weight: weight of cells that show no object.
    """

    def __init__(self, num_classes: int, in_channels: int = 256, stride: int = 16, background_weight: float = 0.15,
                 init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg)
        self.classifier = nn.Conv2d(in_channels, num_classes + 1, 1)
        self.stride, self.num_classes = stride, num_classes
        self.register_buffer('class_weights', torch.tensor([1.0] * num_classes + [background_weight]), persistent=False)

    def forward(self, features: Tensor, metas: Sequence[dict] = ()) -> Tensor:
        """Features (B, N, C, H, W) -> logits (B, N, num_classes + 1, H, W)."""
        return self.classifier(features.flatten(0, 1)).unflatten(0, features.shape[:2])

    def loss(self, features: Tensor, data_samples: Sequence[Det3DDataSample]) -> dict[str, Tensor]:
        """``loss_cls``: cross-entropy of the tokens, (); and the share of object tokens that are right."""
        logits = self(features).flatten(0, 1)
        labels = torch.stack([self.token_labels(sample, logits.shape[-2:]) for sample in data_samples])
        labels = to_device(labels.flatten(0, 1), logits.device)
        objects = labels < len(self.class_weights) - 1
        right = ((logits.argmax(1) == labels) & objects).sum() / objects.sum().clamp(min=1)
        return dict(loss_cls=F.cross_entropy(logits, labels, self.class_weights), accuracy=right)

    def token_labels(self, sample: Det3DDataSample, feature_size: tuple[int, int]) -> Tensor:
        """Class of the nearest 2D box over each cell, ``num_classes`` for none: (N, H, W). ``gt_cameras`` come
        farthest first."""
        labels = torch.full((len(sample.gt_cameras), *feature_size), len(self.class_weights) - 1)
        for camera, boxes in zip(labels, sample.gt_cameras):
            low = (boxes.bboxes[:, :2] / self.stride).floor().long().tolist()
            high = (boxes.bboxes[:, 2:] / self.stride).ceil().long().tolist()
            for (left, top), (right, bottom), label in zip(low, high, boxes.labels.tolist()):
                camera[top:bottom, left:right] = label
        return labels

    def predict(self, features: Tensor, data_samples: Sequence[Det3DDataSample]) -> None:
        raise NotImplementedError('TokenClassifierHead finds no boxes: give its checkpoint to a detector as load_from')
