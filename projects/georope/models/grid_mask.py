"""GridMask as an augmentation of normalised batches."""

import torch
from mmdet3d.structures.det3d_data_sample import SampleList
from torch import Tensor, nn

from georope.registry import MODELS
from georope.rope.transfer import to_device


@MODELS.register_module()
class GridMask(nn.Module):
    """Black out squares on a regular grid (arXiv 2001.04086), a batch augmentation of the preprocessor.

    What stays are horizontal and vertical stripes ``ratio`` of the grid's period wide; the squares between them become
    0, the mean colour of normalised images. Each image of a batch has its own period (2 pixels to its height), offset
    and chance to be masked; the StreamPETR repository, whose ``mode=1`` this is, draws one mask for all cameras of a
    batch. Random numbers come from torch's default CPU generator, so they are the same on every device.

    Args:
        prob: Chance of an image to be masked.
        ratio: Width of the stripes as a share of the period.
        last_frames: How many frames of a window (B, T, N, C, H, W) are masked, the newest; None for all. The StreamPETR
            repository masks those its backbone learns from.
    """

    def __init__(self, prob: float = 0.7, ratio: float = 0.5, last_frames: int | None = None) -> None:
        super().__init__()
        self.prob, self.ratio, self.last_frames = prob, ratio, last_frames

    def forward(self, imgs: Tensor, data_samples: SampleList) -> tuple[Tensor, SampleList]:
        """Mask ``imgs`` (..., C, H, W); ``data_samples`` pass through. The preprocessor calls this in training only."""
        *batch, _, height, width = imgs.shape
        period = torch.randint(2, max(height, 3), batch)
        stripe = (period * self.ratio + 0.5).long().clamp(min=1).minimum(period - 1)
        masked = torch.rand(batch) < self.prob
        if self.last_frames is not None:
            masked[:, :-self.last_frames] = False
        rows, columns = (self._stripes(size, period, stripe) for size in (height, width))
        lines = to_device(torch.cat((rows | ~masked[..., None], columns), dim=-1), imgs.device)
        rows, columns = lines.split((height, width), dim=-1)
        keep = rows[..., :, None] | columns[..., None, :]
        return imgs * keep[..., None, :, :].to(imgs), data_samples

    @staticmethod
    def _stripes(size: int, period: Tensor, stripe: Tensor) -> Tensor:
        """(..., size) bool: which rows or columns lie in a stripe; the offset is drawn."""
        offset = (torch.rand(period.shape) * period).long()
        return (torch.arange(size) + offset[..., None]) % period[..., None] < stripe[..., None]
