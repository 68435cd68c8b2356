"""Rays: from ``lidar2img`` to where every image token may look (rope/README.md, 1; URoPE, arXiv 2604.18747)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .transfer import to_device


@dataclass(frozen=True)
class Rays:
    """Rays of all image tokens in the LiDAR frame: at camera depth ``d`` a token is at ``origin + d * direction``.

    ``direction`` is not unit length: ``d`` is the depth along the camera's optical axis in metres.

    Attributes:
        origins: (B, L, 3) camera centres, metres.
        directions: (B, L, 3) metres per metre of depth.
        footprints: (B, L, 2, 3) change of ``direction`` per pixel along u and v.
        pixels: (B, L, 2) where the tokens are in the image, (u, v) in pixels.
        patch_variance: variance of a pixel coordinate inside a token's patch, ``stride ** 2 / 12`` square pixels; for
            tokens of several strides (B, L, 1).
        image_size: (width, height) of the feature map in pixels.
        cameras: (B, L), int64, index of each token's camera among N. This and the next one are None in rays made by
            hand.
        img2lidar: (B, N, 3, 4), the cameras' inverse projections: ``u d, v d, d, 1`` -> point in metres.
    """

    origins: Tensor
    directions: Tensor
    footprints: Tensor
    pixels: Tensor
    patch_variance: float | Tensor
    image_size: tuple[float, float]
    cameras: Tensor | None = None
    img2lidar: Tensor | None = None

    @classmethod
    def from_lidar2img(cls, lidar2img: Tensor, feature_size: tuple[int, int], stride: float = 16,
                       device: torch.device | None = None, dtype: torch.dtype | None = None) -> Rays:
        """Lift the centres ``((column + .5) * stride, (row + .5) * stride)`` of a feature map's cells.

        Args:
            lidar2img: (B, N, 4, 4), LiDAR point -> (u d, v d, d, 1), after every image and BEV augmentation. Flips
                (negative focal length), crops, skew and scale need no special case.
            feature_size: rows and columns (H, W) of the feature map.
            stride: pixels of the augmented image per cell.
            device: of the rays; None for that of ``lidar2img``. Matrices on the CPU are inverted and checked there, and
                the host need not wait for a GPU.
            dtype: of the rays; None for that of ``lidar2img``, float32 at least.

        Returns:
            Rays of L = N * H * W tokens in the order (camera, row, column). They are computed in float64, whatever
            autocast says, where ``lidar2img`` is, and rounded then.

        Raises:
            ValueError: if ``lidar2img`` is not (B, N, 4, 4), or a camera's matrix is singular or not finite.
        """
        if lidar2img.dim() != 4 or lidar2img.shape[-2:] != (4, 4):
            raise ValueError(f'lidar2img must be (B, N, 4, 4), not {tuple(lidar2img.shape)}')
        dtype = torch.promote_types(lidar2img.dtype, torch.float32) if dtype is None else dtype
        with torch.autocast(lidar2img.device.type, enabled=False):
            img2lidar, info = torch.linalg.inv_ex(lidar2img.double())
            bad = (info != 0) | ~img2lidar.isfinite().all(-1).all(-1)
            if bad.any():
                raise ValueError('lidar2img cannot be inverted or is not finite for (sample in batch, camera) '
                                 f'{bad.nonzero().tolist()}')
        return cls.from_img2lidar(img2lidar[..., :3, :], feature_size, stride, device, dtype)

    @classmethod
    def from_img2lidar(cls, img2lidar: Tensor, feature_size: tuple[int, int], stride: float = 16,
                       device: torch.device | None = None, dtype: torch.dtype | None = None) -> Rays:
        """The same of inverse projections (B, N, 3, 4), in their precision; nothing is checked."""
        rows, columns = feature_size
        device = img2lidar.device if device is None else device
        dtype = img2lidar.dtype if dtype is None else dtype
        with torch.autocast(device.type, enabled=False):
            u = (torch.arange(columns, device=img2lidar.device, dtype=img2lidar.dtype) + 0.5) * stride
            v = (torch.arange(rows, device=img2lidar.device, dtype=img2lidar.dtype) + 0.5) * stride
            m1, m2, m3, _ = img2lidar.unbind(-1)  # columns, each (B, N, 3)
            directions = (m1[:, :, None, None] * u[:, None] + m2[:, :, None, None] * v[:, None, None]
                          + m3[:, :, None, None])  # (B, N, H, W, 3)
            directions, img2lidar, pixels = (to_device(x.to(dtype), device) for x in (
                directions, img2lidar, torch.cat((u, v))))
            u, v = pixels.split((columns, rows))
            batch, num_cameras, tokens = *img2lidar.shape[:2], rows * columns
            origins = img2lidar[..., 3].repeat_interleave(tokens, dim=1)
            footprints = img2lidar[..., :2].mT.repeat_interleave(tokens, dim=1)
            pixels = torch.stack((u.repeat(rows), v.repeat_interleave(columns)), dim=-1).repeat(batch, num_cameras, 1)
            cameras = torch.arange(num_cameras, device=device).repeat_interleave(tokens).expand(batch, -1)
            return cls(origins, directions.flatten(1, 3), footprints, pixels, stride ** 2 / 12,
                       (columns * stride, rows * stride), cameras, img2lidar)

    @classmethod
    def concatenate(cls, scales: Sequence[Rays]) -> Rays:
        """The rays of several feature maps of the same images, one map's tokens behind the other's: each token keeps
        the patch of its own map.

        Raises:
            ValueError: the maps do not cover the same pixels.
        """
        first = scales[0]
        if any(rays.image_size != first.image_size for rays in scales):
            raise ValueError('feature maps of several strides must cover the same pixels, not (width, height) of '
                             f'{[rays.image_size for rays in scales]}: pad images to multiples of the largest stride '
                             '(pad_size_divisor of the data_preprocessor)')
        variances = [torch.ones_like(rays.origins[..., :1]) * rays.patch_variance for rays in scales]
        joined = {name: torch.cat([getattr(rays, name) for rays in scales], dim=1)
                  for name in ('origins', 'directions', 'footprints', 'pixels', 'cameras')}
        return cls(**joined, patch_variance=torch.cat(variances, dim=1), image_size=first.image_size,
                   img2lidar=first.img2lidar)

    def points(self, depths: Sequence[float] | Tensor) -> Tensor:
        """Points on every ray: (B, L, len(depths), 3), metres, LiDAR frame."""
        depths = torch.as_tensor(depths, dtype=self.directions.dtype, device=self.directions.device)
        return self.origins.unsqueeze(-2) + depths[:, None] * self.directions.unsqueeze(-2)

    @property
    def focal_lengths(self) -> Tensor:
        """(B, L), pixels of the augmented image: the root of fx fy, whatever flip, crop, skew or BEV scale.

        The parallelogram of the footprints has the area ``s^2 / (fx fy)``, and the direction reaches ``s`` above it,
        where s is the BEV scale.
        """
        normal = torch.linalg.cross(*self.footprints.unbind(-2))
        return (normal * self.directions).sum(-1).abs() / normal.norm(dim=-1) ** 1.5

    def locate(self, points: Tensor) -> Tensor:
        """Which tokens see points, and how deep: (B, L, n), the depth of a point whose image lies in the token's patch,
        infinity elsewhere.

        Args:
            points: (B, n, 3), metres, LiDAR frame; NaN lies nowhere.
        """
        along_u, along_v = self.footprints.unbind(-2)
        normals = torch.stack((along_u.cross(along_v, -1), along_v.cross(self.directions, -1),
                               self.directions.cross(along_u, -1)), dim=-2)
        # Rows of the inverse of (direction, along_u, along_v): a point is at depth (1, pixels along u, along v).
        normals = normals / (normals[..., 0, :] * self.directions).sum(-1)[..., None, None]
        offsets = points[:, None] - self.origins[:, :, None]
        depth, u, v = (normals[:, :, None] * offsets[..., None, :]).sum(-1).unbind(-1)
        half = (3 * self.patch_variance) ** 0.5 * depth
        return torch.where((depth > 0) & (u.abs() <= half) & (v.abs() <= half), depth, torch.inf)

    def select(self, tokens: Tensor) -> Rays:
        """The rays of some tokens, indices (B, K)."""
        batch = torch.arange(len(tokens), device=tokens.device)[:, None]
        return self._map(lambda x: x[batch, tokens], 'origins', 'directions', 'footprints', 'pixels', 'patch_variance',
                         'cameras')

    def to(self, dtype: torch.dtype) -> Rays:
        """The same rays in another floating point type."""
        return self._map(lambda x: x.to(dtype), 'origins', 'directions', 'footprints', 'pixels', 'patch_variance',
                         'img2lidar')

    def _map(self, function: Callable[[Tensor], Tensor], *names: str) -> Rays:
        values = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: function(x) for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **changed)
