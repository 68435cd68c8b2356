"""Additive position embeddings and the modulations that go with them (PETR, FocalPETR, StreamPETR)."""
from __future__ import annotations

import math

import torch
from mmdet.models.layers import inverse_sigmoid as inverse_sigmoid  # clamps to [0, 1]; the logit is within about +-11.5
from torch import Tensor, nn

from georope.rope import Rays


def sine_embedding(x: Tensor, channels: int) -> Tensor:
    """Sine embedding of every value of ``x`` (...): (..., channels), sine and cosine interleaved, base 10000."""
    pair = torch.arange(channels // 2, dtype=torch.float32, device=x.device)
    phase = 2 * math.pi * x[..., None] / 10000 ** (2 * pair / channels)
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(-2)


def sine_embedding_3d(points: Tensor, channels: int) -> Tensor:
    """Sine embedding of normalised points (..., 3): (..., 3 * channels), in the references' order y, x, z."""
    x, y, z = points.unbind(-1)  # not an index list, which a GPU would wait for
    return sine_embedding(torch.stack((y, x, z), dim=-1), channels).flatten(-2)


def nerf_embedding(x: Tensor, octaves: int = 6) -> Tensor:
    """Sines, then cosines of ``x`` (..., n) times 1, 2, 4 ... rad, octave by octave: (..., n * 2 * octaves)."""
    phase = x[..., None, None, :] * (2 ** torch.arange(octaves, device=x.device))[:, None, None]
    return torch.cat((phase.sin(), phase.cos()), dim=-2).flatten(-3)


def lid_depths(num: int, start: float, stop: float) -> Tensor:
    """``num`` depths (metres) whose steps grow linearly from ``start``; ``stop`` would be the next one (PETR eq. 1)."""
    index = torch.arange(num, dtype=torch.float32)
    return start + (stop - start) / (num * (num + 1)) * index * (index + 1)


def frustum_coordinates(rays: Rays, depths: Tensor, position_range: Tensor) -> Tensor:
    """Where each token lies in space for each depth, normalised by ``position_range`` (6,) and not clamped.

    Returns:
        (B, L, len(depths) * 3), x, y, z of the first depth first; the dtype of the rays.
    """
    lower, upper = position_range.chunk(2)
    return ((rays.points(depths) - lower) / (upper - lower)).flatten(-2)


def cone_code(coordinates: Tensor, focal_lengths: Tensor) -> Tensor:
    """The eight numbers that describe the viewing cone of a token (FocalPETR's spatial alignment).

    ``|fx| / 1000, |fy| / 1000``, the token's normalised point at the last depth and at the depth 30 from the end.

    Args:
        coordinates: (B, L, D * 3) of ``frustum_coordinates``.
        focal_lengths: (B, L, 2) of each token's camera, pixels; negative where an image is flipped.

    Returns:
        (B, L, 8).
    """
    focal = focal_lengths.abs().to(coordinates.dtype) / 1000
    return torch.cat((focal, coordinates[..., -3:], coordinates[..., -90:-87]), dim=-1)


class MLN(nn.Module):
    """Layer norm whose scale and shift come from a condition: ``gamma(c) * norm(x) + beta(c)``; starts as a plain norm.

    Args:
        condition_dims: channels of the condition.
        dims: channels of the features.
    """

    def __init__(self, condition_dims: int, dims: int = 256) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Linear(condition_dims, dims), nn.ReLU())
        self.gamma = nn.Linear(dims, dims)
        self.beta = nn.Linear(dims, dims)
        self.norm = nn.LayerNorm(dims, elementwise_affine=False)
        for layer, bias in ((self.gamma, 1.0), (self.beta, 0.0)):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x (..., dims), condition (..., condition_dims) -> (..., dims)."""
        condition = self.reduce(condition)
        return self.gamma(condition) * self.norm(x) + self.beta(condition)


class SEGate(nn.Module):
    """Squeeze-and-excitation gate per token: ``x * sigmoid(MLP(features))``. Parameter names are the references'."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Linear(dims, dims)
        self.conv_expand = nn.Linear(dims, dims)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """x, features (..., dims) -> (..., dims)."""
        return x * self.conv_expand(self.conv_reduce(features).relu()).sigmoid()
