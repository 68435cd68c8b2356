"""The encodings by name: a support, bands and flags each. All share one interface:

    frame = encoding.prepare(rays)                                # once per frame: what cameras and pixels decide
    keys = encoding.rotate_keys(frame, features, layer)           # once per decoder layer: Rotation of the image tokens
    queries = encoding.rotate_queries(points)                     # Rotation of 3D points in metres

Everything here is computed with autocast off, in float32 at least.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .bands import build_bands
from .rays import Rays
from .rotation import Rotation
from .supports import fixed_anchors


class NoEncoding(nn.Module):
    """No rotary code at all (plain PETR): every rotation is None."""

    def __init__(self, num_heads: int = 8, head_dim: int = 32) -> None:
        super().__init__()

    def prepare(self, rays: Rays) -> Any:
        return None

    def rotate_keys(self, frame: Any, features: Tensor, layer: int = 0) -> Rotation | None:
        return None

    def rotate_queries(self, points: Tensor) -> Rotation | None:
        return None


class URoPE(NoEncoding):
    """URoPE (arXiv 2604.18747) between image tokens and 3D points: every head group sees a token at one fixed depth.

    Args:
        num_heads: attention heads.
        head_dim: channels of a head, two per rotary pair.
        anchors: depths in metres, or ``dict(spacing='linspace' | 'lid' | 'log', num=, start=, stop=)``; the default is
            our choice for nuScenes. The paper finds 4 best.
        channel_wise: split the anchors over the pairs of each head instead of over heads (paper's ablation).
        bands: ``'axial'`` (paper), ``'mixed'`` (our choice), or a dict with their options, see ``bands``.
        rotate_values: rotate values and outputs too (METHOD section 5).
    """

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = (5, 12, 25, 45),
                 channel_wise: bool = False, bands: str | dict = 'axial', rotate_values: bool = True) -> None:
        super().__init__(num_heads, head_dim)
        self.rotate_values = rotate_values
        self.register_buffer('bands', build_bands(bands, num_heads, head_dim), persistent=False)
        self.register_buffer('depths', fixed_anchors(anchors, num_heads, head_dim // 2, channel_wise), persistent=False)

    def prepare(self, rays: Rays) -> Rotation:
        """The rotation of all tokens (B, 1 or heads, L, pairs): it depends on cameras and pixels only."""
        with torch.autocast(rays.origins.device.type, enabled=False):
            phase = self._phase(rays.origins) + self.depths[:, None] * self._phase(rays.directions)
            return Rotation.from_phase(phase, self.rotate_values)

    def rotate_keys(self, frame: Rotation, features: Tensor, layer: int = 0) -> Rotation:
        """The rotation made by ``prepare``; features (B, L, C) and layer play no part."""
        return frame

    def rotate_queries(self, points: Tensor) -> Rotation:
        """The exact rotation of ``points`` (B, Q, 3), metres, LiDAR frame: (B, 1 or heads, Q, pairs)."""
        with torch.autocast(points.device.type, enabled=False):
            points = points.to(torch.promote_types(points.dtype, torch.float32))
            return Rotation.from_phase(self._phase(points), self.rotate_values)

    def _phase(self, vectors: Tensor) -> Tensor:
        """``w . x`` for ``vectors`` (B, L, 3): (B, 1 or heads, L, pairs)."""
        bands = self.bands.to(vectors.dtype)
        # An elementwise sum: a matrix product would run in TF32 where that is switched on.
        return sum(vectors[:, None, :, None, axis] * bands[:, None, :, axis] for axis in range(3))
