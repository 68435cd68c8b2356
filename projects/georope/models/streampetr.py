"""The StreamPETR detector: PETR with a memory, trained on streams or on windows (arXiv 2303.11926)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from mmdet3d.structures import Det3DDataSample
from torch import Tensor, nn

from georope.registry import MODELS

from .cameras import as_maps, as_strides, without_missing
from .focal_head import CameraPredictions
from .losses import check_losses
from .petr import PETR


@MODELS.register_module()
class StreamPETR(PETR):
    """Camera-only 3D detector that remembers; any batch size and number of cameras.

    It is fed frame by frame: item b of a batch continues item b of the batch before it, in training and in tests, see
    ``Memory`` for when it starts anew.

    Trained on windows instead (``imgs`` of six dimensions), each starts with an empty memory. As in the reference, the
    frames without gradients pass in evaluation mode, without dropout, denoising or choice of tokens, and no gradient
    passes from a frame to the one before it.

    Args:
        img_roi_head: 2D head as an auxiliary task, which also chooses image tokens; None for none. In evaluation it
            runs only where it leaves out tokens. Where the 3D head reads several maps it reads that of its own stride,
            and all tokens of the others stay.
        num_frame_losses: last frames of a window that have losses.
        num_frame_head_grads: last frames of a window that pass the head in training mode, at least
            ``num_frame_losses``.
        num_frame_backbone_grads: last frames of a window from which the backbone learns.
        kwargs: see ``PETR``; the head is a ``protocols.StreamHead``.
    """

    def __init__(self,
                 *args,
                 img_roi_head: dict | None = None,
                 num_frame_losses: int = 1,
                 num_frame_head_grads: int = 1,
                 num_frame_backbone_grads: int = 1,
                 **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.tta is not None:
            raise ValueError('tta is for PETR: what StreamPETR remembers is of this world, not of its mirror image')
        if not 1 <= num_frame_losses <= num_frame_head_grads or num_frame_backbone_grads < 1:
            raise ValueError('StreamPETR needs 1 <= num_frame_losses <= num_frame_head_grads and '
                             f'num_frame_backbone_grads >= 1, not {num_frame_losses}, {num_frame_head_grads}, '
                             f'{num_frame_backbone_grads}')
        self.img_roi_head = None if img_roi_head is None else MODELS.build(img_roi_head)
        strides = as_strides(self.pts_bbox_head.stride)
        if self.img_roi_head is not None and self.img_roi_head.stride not in strides:
            raise ValueError(f'img_roi_head.stride={self.img_roi_head.stride} is not that of pts_bbox_head, '
                             f'{self.pts_bbox_head.stride}: both read one feature map')
        self.num_frame_losses = num_frame_losses
        self.num_frame_head_grads = num_frame_head_grads
        self.num_frame_backbone_grads = num_frame_backbone_grads

    def loss(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Losses of the next frames of a stream, or of windows.

        Args:
            batch_inputs: ``imgs`` (B, N, 3, height, width); of windows (B, T, N, 3, height, width), oldest first.
            batch_data_samples: those of the frames; of windows those with ``frames``, a list of T samples.

        Returns:
            Losses of ``PETRHead.loss`` and ``FocalHead.loss``; those of frame t of a window as ``frame_{t}_...``.
        """
        if batch_inputs['imgs'].dim() == 6:
            return self._window_loss(batch_inputs['imgs'], [sample.frames for sample in batch_data_samples])
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        return self._frame_loss(self.extract_feat(dict(imgs=imgs)), samples)

    def predict(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample],
                **kwargs) -> list[Det3DDataSample]:
        """The samples with ``pred_instances_3d``, see ``PETRHead.predict``."""
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        features = self.extract_feat(dict(imgs=imgs))
        tokens = self._choose(features, [sample.metainfo for sample in samples])
        results = self.pts_bbox_head.predict(features, samples, tokens)
        return self.add_pred_to_datasample(batch_data_samples, results)

    def _forward(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Raw predictions, see ``PETRHead.forward``."""
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        features = self.extract_feat(dict(imgs=imgs))
        metas = [sample.metainfo for sample in samples]
        return self.pts_bbox_head(features, metas, tokens=self._choose(features, metas))

    def _choose(self, features: Tensor | Sequence[Tensor], metas: Sequence[dict]) -> Tensor | None:
        """Image tokens for the 3D head, where the 2D head leaves out any."""
        if self.img_roi_head is None or self.img_roi_head.ratio == 1:
            return None
        return self._chosen(features, self.img_roi_head(self._map_2d(features), metas))

    def _map_2d(self, features: Tensor | Sequence[Tensor]) -> Tensor:
        """The feature map that the 2D head reads."""
        assert self.img_roi_head is not None, 'only its callers ask'
        return as_maps(features)[as_strides(self.pts_bbox_head.stride).index(self.img_roi_head.stride)]

    def _chosen(self, features: Tensor | Sequence[Tensor], predictions: CameraPredictions) -> Tensor | None:
        """(B, K), the tokens that the 2D head chose of its map, and all of the others; None for all."""
        chosen, maps = predictions.tokens, as_maps(features)
        if chosen is None or len(maps) == 1:
            return chosen
        own, start, kept = self._map_2d(features), 0, []
        for each in maps:
            number = each.shape[1] * each.shape[3] * each.shape[4]
            every = torch.arange(start, start + number, device=chosen.device).expand(len(chosen), -1)
            kept.append(start + chosen if each is own else every)
            start += number
        return torch.cat(kept, dim=1)

    def _frame_loss(self, features: Tensor | Sequence[Tensor],
                    data_samples: Sequence[Det3DDataSample]) -> dict[str, Tensor]:
        if self.img_roi_head is None:
            return self.pts_bbox_head.loss(features, data_samples)
        metas = [sample.metainfo for sample in data_samples]
        predictions = self.img_roi_head(self._map_2d(features), metas)
        losses = self.pts_bbox_head.loss(features, data_samples, self._chosen(features, predictions))
        auxiliary = self.img_roi_head.loss(predictions, data_samples)
        check_losses(auxiliary, metas)
        return losses | auxiliary

    def _window_loss(self, imgs: Tensor, windows: Sequence[Sequence[Det3DDataSample]]) -> dict[str, Tensor]:
        """imgs (B, T, N, 3, height, width) and the T samples of each window -> losses."""
        length = imgs.shape[1]
        lengths = {len(window) for window in windows}
        if lengths != {length} or length < self.num_frame_head_grads or length < self.num_frame_backbone_grads:
            raise ValueError(f'windows have {length} frames of images and {sorted(lengths)} samples; it needs as '
                             f'many of both, at least num_frame_head_grads={self.num_frame_head_grads} and '
                             f'num_frame_backbone_grads={self.num_frame_backbone_grads}')
        parts = []
        first = length - self.num_frame_backbone_grads
        if first:
            with torch.no_grad(), _evaluating(self):
                parts.append(self._extract_frames(imgs[:, :first]))
        parts.append(self._extract_frames(imgs[:, first:]))
        maps = [torch.cat(of_level, dim=1) for of_level in zip(*parts)]  # (B, T, N, C, H, W) each
        several = not isinstance(self.pts_bbox_head.stride, int)

        self.pts_bbox_head.memory.reset()
        losses: dict[str, Tensor] = {}
        for t, samples in enumerate(zip(*windows)):
            metas = [sample.metainfo for sample in samples]
            features = [frames[:, t] for frames in maps] if several else maps[0][:, t]
            if t >= length - self.num_frame_losses:
                of_frame = self._frame_loss(features, samples)
                losses |= {f'frame_{t}_{name}': loss for name, loss in of_frame.items()}
            elif t >= length - self.num_frame_head_grads:
                with torch.no_grad():  # the memory is detached: without a loss there is nothing to learn from
                    self.pts_bbox_head(features, metas, tokens=self._choose(features, metas))
            else:
                with torch.no_grad(), _evaluating(self):
                    self.pts_bbox_head(features, metas)
        return losses

    def _extract_frames(self, imgs: Tensor) -> list[Tensor]:
        """imgs (B, T, N, 3, height, width) -> the head's maps, (B, T, N, C, H, W) each."""
        return [features.unflatten(1, imgs.shape[1:3])
                for features in as_maps(self.extract_feat(dict(imgs=imgs.flatten(1, 2))))]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while, without ``train()``, which would forget the memory."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
