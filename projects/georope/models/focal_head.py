"""FocalHead: 2D boxes, centres and heat maps as auxiliary tasks, and the image tokens worth attending to (FocalPETR,
arXiv 2212.05505, as in StreamPETR). Parameters have the names of the released weights."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_xyxy_to_cxcywh
from mmdet.utils import reduce_mean
from mmengine.dist import get_world_size
from mmengine.model import BaseModule, bias_init_with_prob
from mmengine.structures import InstanceData
from torch import Tensor, nn

from georope.errors import InputError
from georope.registry import MODELS, TASK_UTILS
from georope.rope.transfer import to_device

from .assignment import solve
from .boxes_2d import overlaps
from .cameras import padded_tokens, sample_name
from .embeddings import inverse_sigmoid
from .losses import check_predictions


@dataclass
class CameraPredictions:
    """What the head says of the M cells of each of the B * N images; positions are fractions of the padded image.

    Attributes:
        logits: (B * N, M, classes).
        boxes: (B * N, M, 4), centre x, y, width, height.
        centres: (B * N, M, 2), where the centre of the 3D box appears.
        centerness: (B * N, M), logits.
        size: height, width of the padded image in pixels.
        tokens: (B, K), the best tokens of each sample, over all its cameras, best first; None for all.
    """

    logits: Tensor
    boxes: Tensor
    centres: Tensor
    centerness: Tensor
    size: tuple[int, int]
    tokens: Tensor | None


@MODELS.register_module()
class FocalHead(BaseModule):
    """2D head on the feature map that the 3D head reads.

    A token's score is that of its best class times its centerness; tokens of padding are chosen last. In the losses
    cells of padding count as background.

    Args:
        num_classes: classes, those of the 3D head.
        in_channels: channels of the feature map.
        embed_dims: channels of both towers, a multiple of 32.
        stride: pixels per cell.
        train_ratio, infer_ratio: share of the image tokens that is chosen in training, in evaluation.
        assigner: assigns objects to the cells of an image; it compares ``scores`` (logits), ``bboxes`` (x, y, x, y in
            pixels) and ``codes`` (n, 2), the centres as fractions of the image.
        loss_cls2d, loss_centerness, loss_bbox2d, loss_iou2d, loss_centers2d: losses.
    """

    def __init__(self,
                 num_classes: int,
                 assigner: dict,
                 loss_cls2d: dict,
                 loss_centerness: dict,
                 loss_bbox2d: dict,
                 loss_iou2d: dict,
                 loss_centers2d: dict,
                 in_channels: int = 256,
                 embed_dims: int = 256,
                 stride: int = 16,
                 train_ratio: float = 1.0,
                 infer_ratio: float = 1.0,
                 init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg)
        for name, ratio in (('train_ratio', train_ratio), ('infer_ratio', infer_ratio)):
            if not 0 < ratio <= 1:
                raise ValueError(f'FocalHead: {name}={ratio} must lie in (0, 1]')
        self.num_classes = num_classes
        self.stride = stride
        self.train_ratio, self.infer_ratio = train_ratio, infer_ratio
        self.shared_cls, self.shared_reg = _tower(in_channels, embed_dims), _tower(in_channels, embed_dims)
        self.cls = nn.Conv2d(embed_dims, num_classes, 1)
        self.centerness = nn.Conv2d(embed_dims, 1, 1)
        self.ltrb = nn.Conv2d(embed_dims, 4, 1)
        self.center2d = nn.Conv2d(embed_dims, 2, 1)
        self.assigner = TASK_UTILS.build(assigner)
        self.loss_cls2d = MODELS.build(loss_cls2d)
        self.loss_centerness = MODELS.build(loss_centerness)
        self.loss_bbox2d = MODELS.build(loss_bbox2d)
        self.loss_iou2d = MODELS.build(loss_iou2d)
        self.loss_centers2d = MODELS.build(loss_centers2d)

    def init_weights(self) -> None:
        """Classes and centres start at a score of 0.01."""
        super().init_weights()
        for layer in (self.cls, self.centerness):
            nn.init.constant_(layer.get_parameter('bias'), bias_init_with_prob(0.01))

    @property
    def ratio(self) -> float:
        """Share of the tokens that is chosen in the current mode."""
        return self.train_ratio if self.training else self.infer_ratio

    def forward(self, features: Tensor, metas: Sequence[dict]) -> CameraPredictions:
        """features (B, N, in_channels, H, W) and the samples' meta information (img_shape) -> predictions, float32."""
        batch, cameras = features.shape[:2]
        size = (features.shape[3], features.shape[4])
        images = features.flatten(0, 1)
        classified, regressed = self.shared_cls(images), self.shared_reg(images)
        logits, centerness, ltrb, offset = (
            conv(x).float().flatten(2).transpose(1, 2)
            for conv, x in ((self.cls, classified), (self.centerness, classified), (self.ltrb, regressed),
                            (self.center2d, regressed)))
        cells = _cell_centres(size, features.device)
        left_top, right_bottom = ltrb.sigmoid().chunk(2, dim=-1)
        corners = torch.cat((cells - left_top, cells + right_bottom), dim=-1).clamp(0, 1)
        tokens = None
        if self.ratio < 1:
            score = (logits.amax(-1).sigmoid() * centerness[..., 0].sigmoid()).detach().unflatten(0, (batch, cameras))
            score = score.flatten(1)
            padding = padded_tokens(metas, cameras, size, self.stride, features.device)
            if padding is not None:
                score = score.masked_fill(padding, -1)
            tokens = score.topk(int(score.shape[1] * self.ratio), dim=1).indices
        return CameraPredictions(
            logits, bbox_xyxy_to_cxcywh(corners), (inverse_sigmoid(cells) + offset).sigmoid(), centerness[..., 0],
            (size[0] * self.stride, size[1] * self.stride), tokens)

    def loss(self, predictions: CameraPredictions, data_samples: Sequence) -> dict[str, Tensor]:
        """Losses of one frame per sample.

        Args:
            predictions: of ``forward``.
            data_samples: with ``gt_cameras``, over cameras ``bboxes`` (m, 4) and ``centers_2d`` (m, 2) in pixels,
                ``labels`` (m,).

        Returns:
            ``enc_loss_cls``, ``enc_loss_bbox``, ``enc_loss_iou``, ``centers2d_losses``, ``centerness_losses``, each
            this rank's sum divided by the mean number of matched objects of a rank.

        Raises:
            FloatingPointError: if predictions are not finite; names the samples.
            ValueError: if a sample has no or unusable 2D labels; names it and the camera.
        """
        check_predictions((predictions.logits, predictions.boxes, predictions.centres, predictions.centerness),
                          [sample.metainfo for sample in data_samples], '2D predictions')
        height, width = predictions.size
        images = self._read(data_samples, predictions.logits.device)
        scale = predictions.boxes.new_full((2, ), height)
        scale[0] = width
        corners = bbox_cxcywh_to_xyxy(predictions.boxes) * scale.repeat(2)
        pairs = solve(self.assigner, [
            (InstanceData(scores=predictions.logits[i].detach(), bboxes=corners[i].detach(),
                          codes=predictions.centres[i].detach()),
             InstanceData(labels=truth.labels, bboxes=truth.bboxes, codes=truth.centers_2d / scale))
            for i, truth in enumerate(images)], dict(img_shape=predictions.size))
        matched, objects = to_device(pairs, corners.device)
        boxes, centres, true_labels = (torch.cat([getattr(truth, name) for truth in images])[objects]
                                       for name in ('bboxes', 'centers_2d', 'labels'))
        labels = torch.full((predictions.logits.shape[:2].numel(), ), self.num_classes, device=corners.device)
        labels[matched] = true_labels

        num = to_device(torch.tensor(float(len(matched))), corners.device)
        avg_factor = reduce_mean(num).clamp(min=1 / get_world_size())
        corners = corners.flatten(0, 1)[matched]
        quality = torch.zeros_like(labels, dtype=corners.dtype)
        quality[matched] = overlaps(boxes, corners.detach())[0]
        heat = torch.stack([self._heat_map(truth, predictions.size) for truth in images])
        # The bounds of the reference: without them a sure cell has no finite loss.
        centerness = predictions.centerness.sigmoid().clamp(1e-4, 1 - 1e-4)
        return dict(
            enc_loss_cls=self.loss_cls2d(predictions.logits.flatten(0, 1), (labels, quality),
                                         avg_factor=avg_factor),
            enc_loss_bbox=self.loss_bbox2d(predictions.boxes.flatten(0, 1)[matched],
                                           bbox_xyxy_to_cxcywh(boxes / scale.repeat(2)), avg_factor=avg_factor),
            enc_loss_iou=self.loss_iou2d(corners, boxes, avg_factor=avg_factor),
            centers2d_losses=self.loss_centers2d(predictions.centres.flatten(0, 1)[matched], centres / scale,
                                                 avg_factor=avg_factor),
            centerness_losses=self.loss_centerness(centerness, heat.flatten(1), avg_factor=avg_factor))

    def _read(self, data_samples: Sequence, device: torch.device) -> list[InstanceData]:
        """The 2D labels of all cameras of all samples on ``device``."""
        images = []
        for sample in data_samples:
            name = sample_name(sample.metainfo)
            if 'gt_cameras' not in sample:
                raise ValueError(f'sample {name} has no 2D labels for img_roi_head: the info file lacks cam_instances '
                                 '(tools/create_data.py writes them), or LoadCameraAnnotations is missing in the '
                                 'pipeline')
            for i, truth in enumerate(sample.gt_cameras):
                truth = truth.to('cpu')
                good = truth.bboxes.isfinite().all() & truth.centers_2d.isfinite().all()
                if not good or not ((truth.labels >= 0) & (truth.labels < self.num_classes)).all():
                    raise InputError(f'sample {name}, camera {i}: 2D boxes and centres must be finite and labels below '
                                     f'num_classes={self.num_classes}; of {len(truth.labels)} labels the least is '
                                     f'{int(truth.labels.min())}, the largest {int(truth.labels.max())}. They are '
                                     'positions in metainfo.classes of the dataset.')
                images.append(truth)
        counts = [len(truth) for truth in images]
        moved = (to_device(torch.cat([getattr(truth, name) for truth in images]), device).split(counts)
                 for name in ('bboxes', 'centers_2d', 'labels'))
        return [InstanceData(bboxes=bboxes, centers_2d=centers_2d, labels=labels)
                for bboxes, centers_2d, labels in zip(*moved)]

    def _heat_map(self, truth: InstanceData, size: tuple[int, int]) -> Tensor:
        """(H, W): 1 at the cells of the centres, falling off as far as the nearest side of the 2D box; all classes."""
        rows, columns = (torch.arange(pixels // self.stride, device=truth.bboxes.device) for pixels in size)
        if not len(truth):
            return truth.bboxes.new_zeros(len(rows), len(columns))
        sides = torch.cat((truth.centers_2d - truth.bboxes[:, :2], truth.bboxes[:, 2:] - truth.centers_2d), dim=1)
        radius = (sides.amin(1) / self.stride).ceil().clamp(min=1)[:, None, None]
        column, row = (truth.centers_2d / self.stride).long().T[..., None, None]
        x, y = columns - column, rows[:, None] - row
        sigma = (2 * radius + 1) / 6
        heat = torch.exp(-(x ** 2 + y ** 2) / (2 * sigma ** 2))
        return torch.where((x.abs() <= radius) & (y.abs() <= radius), heat, 0).amax(0)


def _tower(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, channels, 3, padding=1), nn.GroupNorm(32, channels), nn.ReLU())


def _cell_centres(size: Sequence[int], device: torch.device) -> Tensor:
    """(H * W, 2), x and y of the cells' centres as fractions of the feature map."""
    y, x = ((torch.arange(num, device=device) + 0.5) / num for num in size)
    return torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))), dim=-1).flatten(0, 1)
