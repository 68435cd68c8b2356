"""Normalises and pads images, of one frame per sample or of a window of frames."""
from __future__ import annotations

from typing import Any

import torch
from mmdet3d.models import Det3DDataPreprocessor
from mmengine.structures import BaseDataElement
from torch import Tensor

from georope.registry import MODELS
from georope.rope.transfer import to_device


@MODELS.register_module()
class FramePreprocessor(Det3DDataPreprocessor):
    """mmdet3d's, which also takes windows: images (T, N, 3, h, w) of each sample become ``imgs`` (B, T, N, 3, H, W).

    Batch augmentations see windows with all their dimensions. Images (N, 3, h, w) are treated as mmdet3d does. The host
    never waits for the device: images pass pinned memory, and ground truth stays on the CPU, where the heads check it
    before they send that of the whole batch at once.
    """

    def cast_data(self, data: Any) -> Any:
        if isinstance(data, BaseDataElement):
            return data
        return to_device(data, torch.device(self.device)) if isinstance(data, Tensor) else super().cast_data(data)

    def preprocess_img(self, image: Tensor) -> Tensor:
        """One image (3, h, w), normalised."""
        if self._channel_conversion:
            image = image.flip(0)  # mmdet3d's index list is a copy to the device
        image = image.float()
        return (image - self.mean) / self.std if self._enable_normalize else image

    def _get_pad_shape(self, data: dict) -> list[tuple[int, int]]:
        images = [image.flatten(0, -4) for image in data['inputs']['img']]
        return super()._get_pad_shape(dict(inputs=dict(img=images)))

    def collate_data(self, data: dict) -> dict:
        lengths = {len(image) if image.dim() == 5 else 0 for image in data['inputs']['img']}
        if len(lengths) > 1:
            raise ValueError(f'the windows of a batch must have the same number of frames, not {sorted(lengths)}')
        images = [image.flatten(0, -4) for image in data['inputs']['img']]
        data = super().collate_data({**data, 'inputs': {**data['inputs'], 'img': images}})
        length, = lengths
        if length:
            data['inputs']['imgs'] = data['inputs']['imgs'].unflatten(1, (length, -1))
        return data
