"""Bands: the frequencies of the rotary pairs (rope/README.md, 2).

A band is a 3-vector ``w`` in rad/m; the phase of a point ``X`` is ``w . X``. A head of width D has D/2 pairs, one band
each; a pair with the zero band is not rotated. ``axial`` is the papers' (URoPE's with ``equal``), ``mixed`` and all
wavelengths are our choice.
"""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

XY_WAVELENGTHS = (3.0, 240.0)
Z_WAVELENGTHS = (1.5, 36.0)


def frequencies(num: int, shortest: float, longest: float) -> Tensor:
    """``num`` angular frequencies (rad/m), highest first, of log-spaced wavelengths (metres)."""
    if not 0 < shortest <= longest < math.inf:
        raise ValueError(f'wavelengths must satisfy 0 < shortest <= longest < inf, not ({shortest}, {longest})')
    return 2 * math.pi / torch.logspace(math.log2(shortest), math.log2(longest), num, base=2, dtype=torch.float64)


def axial_bands(num_heads: int, num_pairs: int, xy: tuple[float, float] = XY_WAVELENGTHS,
                z: tuple[float, float] = Z_WAVELENGTHS, equal: bool = False) -> Tensor:
    """Bands on the axes, the same for all heads: of 16 pairs 6 on x, 6 on y, 4 on z (choice), or as many on each axis
    (``equal``, URoPE's way: 5, 5, 5). What is left over stays unrotated.

    Returns:
        (1, num_pairs, 3), rad/m.
    """
    on_z = num_pairs // 3 if equal else num_pairs // 4
    on_x = on_y = on_z if equal else (num_pairs - on_z) // 2
    bands = torch.zeros(1, num_pairs, 3, dtype=torch.float64)
    bands[0, :on_x, 0] = frequencies(on_x, *xy)
    bands[0, on_x:on_x + on_y, 1] = frequencies(on_y, *xy)
    bands[0, on_x + on_y:on_x + on_y + on_z, 2] = frequencies(on_z, *z)
    return bands


def mixed_bands(num_heads: int, num_pairs: int, xy: tuple[float, float] = XY_WAVELENGTHS,
                z: tuple[float, float] = Z_WAVELENGTHS, directions: int = 3) -> Tensor:
    """BEV directions over 0..180 degrees crossed with wavelengths, and bands on z; directions differ per head.

    Of 16 pairs, 12 lie in the BEV plane (3 directions x 4 wavelengths) and 4 on z. Head h turns its directions by
    ``h / num_heads`` of their spacing, so that all heads together cover ``directions * num_heads`` bearings.

    Returns:
        (num_heads, num_pairs, 3), rad/m.
    """
    on_z = num_pairs // 4
    if not 1 <= directions <= num_pairs - on_z:
        raise ValueError(f'{directions} directions do not fit the {num_pairs - on_z} pairs that lie in the BEV plane')
    per_direction = (num_pairs - on_z) // directions
    head = torch.arange(num_heads, dtype=torch.float64)[:, None]
    angle = math.pi / directions * (torch.arange(directions, dtype=torch.float64) + head / num_heads)
    unit = torch.stack((angle.cos(), angle.sin()), dim=-1)  # (heads, directions, 2)
    planar = unit[:, :, None] * frequencies(per_direction, *xy)[:, None]
    bands = torch.zeros(num_heads, num_pairs, 3, dtype=torch.float64)
    in_plane = directions * per_direction
    bands[:, :in_plane, :2] = planar.flatten(1, 2)
    bands[:, in_plane:in_plane + on_z, 2] = frequencies(on_z, *z)
    return bands


BANDS = {'axial': axial_bands, 'mixed': mixed_bands}


class Bands(nn.Module):
    """The bands of an encoding.

    Args:
        bands: ``'axial'`` or ``'mixed'``, or with options, ``dict(type='axial', xy=(3, 240), z=(1.5, 36))``. With
            ``learnable=True`` training turns the bands; their wavelengths stay.
        num_heads: attention heads.
        head_dim: channels of a head, two per rotary pair.
    """

    frequencies: Tensor
    directions: Tensor

    def __init__(self, bands: str | dict, num_heads: int, head_dim: int) -> None:
        super().__init__()
        options: dict[str, Any] = {'type': bands} if isinstance(bands, str) else dict(bands)
        kind, learnable = options.pop('type', None), options.pop('learnable', False)
        if kind not in BANDS:
            raise ValueError(f'bands: unknown type {kind!r}, use one of {sorted(BANDS)}')
        if head_dim % 2:
            raise ValueError(f'head_dim must be even to form rotary pairs, not {head_dim}')
        vectors = BANDS[kind](num_heads, head_dim // 2, **options).float()
        if not vectors.any():
            raise ValueError(f'head_dim {head_dim} is too small: {kind} bands leave all of its pairs unrotated')
        self.register_buffer('frequencies', vectors.norm(dim=-1, keepdim=True), persistent=False)
        differ = ((vectors != vectors[:1]).any(-1) | (learnable and len(vectors) > 1)).any(0).nonzero()
        self.own = int(differ[-1]) + 1 if len(differ) else 0  # pairs with bands of each head, before those of all
        if learnable:
            self.directions = nn.Parameter(F.normalize(vectors, dim=-1))
        else:
            self.register_buffer('directions', F.normalize(vectors, dim=-1), persistent=False)

    @property
    def vectors(self) -> Tensor:
        """(1 or heads, pairs, 3), rad/m."""
        return self.frequencies * F.normalize(self.directions, dim=-1)

    def forward(self, points: Tensor) -> Tensor:
        """``w . x`` of points or directions (..., 3): (..., 1 or heads, pairs), in the dtype of ``points``."""
        return self.spread(self.distinct(points))

    def distinct(self, points: Tensor) -> Tensor:
        """``w . x`` of points or directions (..., 3), a band that all heads share only once: (..., distinct), those of
        each head first. For work on many bands, whose results ``spread`` gives to the heads."""
        vectors = self.vectors.to(points.dtype)
        vectors = torch.cat((vectors[:, :self.own].flatten(0, 1), vectors[0, self.own:]))
        # An elementwise sum: a matrix product would run in TF32 where that is switched on.
        x, y, z = (points[..., None, axis] * vectors[:, axis] for axis in range(3))
        return x + y + z

    def spread(self, x: Tensor, each: int = 1) -> Tensor:
        """``each`` number(s) of the bands, (..., distinct * each), to every head: (..., 1 or heads, pairs * each)."""
        if not self.own:
            return x.unsqueeze(-2)
        num_own = self.own * len(self.frequencies) * each
        own, shared = x.split([num_own, x.shape[-1] - num_own], dim=-1)
        own = own.unflatten(-1, (-1, self.own * each))
        return torch.cat((own, shared.unsqueeze(-2).expand(*own.shape[:-1], -1)), dim=-1)
