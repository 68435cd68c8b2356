"""Rays: from ``lidar2img`` to where every image token may look (METHOD section 1; URoPE, arXiv 2604.18747)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rays:
    """Rays of all image tokens in the LiDAR frame: at camera depth ``d`` a token is at ``origin + d * direction``.

    ``direction`` is not unit length: ``d`` is the depth along the camera's optical axis in metres.

    Attributes:
        origins: (B, L, 3) camera centres, metres.
        directions: (B, L, 3) metres per metre of depth.
        footprints: (B, L, 2, 3) change of ``direction`` per pixel along u and v.
        patch_variance: variance of a pixel coordinate inside a token's patch, ``stride ** 2 / 12`` square pixels.
    """

    origins: Tensor
    directions: Tensor
    footprints: Tensor
    patch_variance: float

    @classmethod
    def from_lidar2img(cls, lidar2img: Tensor, feature_size: tuple[int, int], stride: float = 16) -> Rays:
        """Lift the centres ``((column + .5) * stride, (row + .5) * stride)`` of a feature map's cells.

        Args:
            lidar2img: (B, N, 4, 4), LiDAR point -> (u d, v d, d, 1), after every image and BEV augmentation. Flips
                (negative focal length), crops, skew and scale need no special case.
            feature_size: rows and columns (H, W) of the feature map.
            stride: pixels of the augmented image per cell.

        Returns:
            Rays of L = N * H * W tokens in the order (camera, row, column). The inverse is taken in float64; the result
            has the dtype of ``lidar2img``, float32 at least, whatever autocast says.

        Raises:
            ValueError: if ``lidar2img`` is not (B, N, 4, 4), or a camera's matrix is singular or not finite.
        """
        if lidar2img.dim() != 4 or lidar2img.shape[-2:] != (4, 4):
            raise ValueError(f'lidar2img must be (B, N, 4, 4), not {tuple(lidar2img.shape)}')
        rows, columns = feature_size
        dtype = torch.promote_types(lidar2img.dtype, torch.float32)
        with torch.autocast(lidar2img.device.type, enabled=False):
            img2lidar, info = torch.linalg.inv_ex(lidar2img.double())
            bad = (info != 0) | ~img2lidar.isfinite().all(-1).all(-1)
            if bad.any():
                raise ValueError('lidar2img cannot be inverted or is not finite for (sample in batch, camera) '
                                 f'{bad.nonzero().tolist()}')
            u = (torch.arange(columns, device=lidar2img.device, dtype=torch.float64) + 0.5) * stride
            v = (torch.arange(rows, device=lidar2img.device, dtype=torch.float64) + 0.5) * stride
            m1, m2, m3, m4 = img2lidar[..., :3, :].unbind(-1)  # columns, each (B, N, 3)
            directions = (m1[:, :, None, None] * u[:, None] + m2[:, :, None, None] * v[:, None, None]
                          + m3[:, :, None, None])  # (B, N, H, W, 3)
            tokens = rows * columns
            origins = m4.repeat_interleave(tokens, dim=1)
            footprints = torch.stack((m1, m2), dim=2).repeat_interleave(tokens, dim=1)
            return cls(origins.to(dtype), directions.flatten(1, 3).to(dtype), footprints.to(dtype), stride ** 2 / 12)

    def points(self, depths: Sequence[float] | Tensor) -> Tensor:
        """Points on every ray: (B, L, len(depths), 3), metres, LiDAR frame."""
        depths = torch.as_tensor(depths, dtype=self.directions.dtype, device=self.directions.device)
        return self.origins.unsqueeze(-2) + depths[:, None] * self.directions.unsqueeze(-2)

    def select(self, tokens: Tensor) -> Rays:
        """The rays of some tokens, indices (B, K)."""
        index = tokens[..., None]
        origins, directions = (x.gather(1, index.expand(-1, -1, 3)) for x in (self.origins, self.directions))
        footprints = self.footprints.gather(1, index[..., None].expand(-1, -1, 2, 3))
        return Rays(origins, directions, footprints, self.patch_variance)

    def to(self, dtype: torch.dtype) -> Rays:
        """The same rays in another floating point type."""
        return Rays(self.origins.to(dtype), self.directions.to(dtype), self.footprints.to(dtype), self.patch_variance)
