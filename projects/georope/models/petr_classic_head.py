"""The head of PETR as first published (arXiv 2203.05625): megvii's repository and mmdet3d's projects/PETR."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from georope.registry import MODELS

from .branches import mlp
from .cameras import Cameras, as_strides
from .embeddings import frustum_coordinates, inverse_sigmoid, sine_embedding
from .petr_head import DEPTH_BINS, PETRHead


@MODELS.register_module()
class PETRClassicHead(PETRHead):
    """``PETRHead`` with the image tokens of the first PETR; the arguments are the same ones.

    Features pass one linear layer, without the alignment to the cone; the 3D position embedding has no gate, lies at
    the top left corner of each cell, and has a sine embedding of (camera, row, column) added to it. Attention weights
    are dropped in cross-attention too. Boxes leave in the one layout of ``box_code``: ``tools/convert_checkpoint.py``
    reorders the last layer of released weights.

    On purpose other than in the references: a cell is padding where its centre lies outside the image, not its corner;
    boxes of an unknown velocity and samples without objects train, see ``PETRHead``.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.stride, int):
            raise ValueError(f'PETRClassicHead reads one feature map, not several of stride={self.stride}')
        layer: Any
        for layer in self.decoder.layers:
            self_attention, cross_attention = layer.attentions
            cross_attention.attn.dropout = self_attention.attn.dropout

    def _build_image_layers(self, in_channels: int, embed_dims: int) -> None:
        self.input_proj = nn.Linear(in_channels, embed_dims)
        if self.position_embedding:
            self.position_encoder = mlp(3 * DEPTH_BINS, 4 * embed_dims, embed_dims)
            self.adapt_pos3d = mlp(embed_dims * 3 // 2, 4 * embed_dims, embed_dims)

    def _focal_lengths(self, metas: Sequence[dict], cameras: int, per_camera: int, device: torch.device) -> None:
        """Nothing here looks at them."""

    def _embed_tokens(self, tokens: Tensor, cameras: Cameras,
                      grid: tuple[int, int, int]) -> tuple[Tensor, Tensor | None]:
        if tokens.shape[1] != grid[0] * grid[1] * grid[2]:
            raise ValueError('PETRClassicHead attends to all image tokens: it has no choice of tokens')
        content, rays = self.input_proj(tokens), cameras.rays
        if not self.position_embedding:
            return content, None
        corners = replace(rays, directions=rays.directions - as_strides(self.stride)[0] / 2 * rays.footprints.sum(-2))
        coordinates = frustum_coordinates(corners, self.depths, self.position_range)
        valid = rays.origins.new_ones(tokens.shape[:2])
        if cameras.padding is not None:
            valid = valid.masked_fill(cameras.padding, 0)
        cells = _cell_positions(valid.unflatten(1, grid)).flatten(1, 3)
        sine = sine_embedding(cells, self.embed_dims // 2).flatten(-2)
        return content, self.position_encoder(inverse_sigmoid(coordinates)) + self.adapt_pos3d(sine)


def _cell_positions(valid: Tensor) -> Tensor:
    """Camera, row and column of each cell as shares of the number of valid ones: (B, N, H, W, 3), up to 1.

    Args:
        valid: float32 (B, N, H, W), 0 for padding, else 1.
    """
    counts = (valid.cumsum(dim) for dim in (1, 2, 3))
    return torch.stack([count / (count.select(dim, -1).unsqueeze(dim) + 1e-6)
                        for dim, count in enumerate(counts, start=1)], dim=-1)
