"""Encodings of cameras and of positions in the image; the positions of 3D queries do not enter (rope/README.md, 6)."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .bands import frequencies
from .base import PositionEncoding
from .rays import Rays
from .rotation import Rotation, Transform


class Pluecker(PositionEncoding):
    """An absolute embedding of each token's ray, added to its key: unit direction and moment through a small MLP.

    Args:
        image_rope: shortest and longest wavelength, in widths and heights of the image, of a rotation of keys by their
            position in the image (a baseline of URoPE's table; the values are our choice). 3D queries have no such
            position and do not turn. None for none.
    """

    decisive = ('frequencies',)
    frequencies: Tensor | None

    def __init__(self, num_heads: int = 8, head_dim: int = 32, image_rope: tuple[float, float] | None = None,
                 num_layers: int = 6) -> None:
        super().__init__(num_heads, head_dim, num_layers)
        dims = num_heads * head_dim
        self.mlp = nn.Sequential(nn.Linear(6, dims), nn.ReLU(), nn.Linear(dims, dims))
        if image_rope is not None and head_dim % 4:
            raise ValueError(f'head_dim must be a multiple of 4: as many pairs for u as for v, not {head_dim}')
        waves = None if image_rope is None else frequencies(head_dim // 4, *image_rope).float()
        self.register_buffer('frequencies', waves, persistent=False)

    def prepare(self, rays: Rays, metas: Sequence[dict] | None = None) -> Rotation | None:
        if self.frequencies is None:
            return None
        with torch.autocast(rays.origins.device.type, enabled=False):
            return Rotation.from_phase(_image_phase(rays, self.frequencies), rotate_values=False)

    def embed_keys(self, rays: Rays) -> Tensor:
        """(B, L, num_heads * head_dim)."""
        with torch.autocast(rays.origins.device.type, enabled=False):
            directions = F.normalize(rays.directions, dim=-1)
            return self.mlp(torch.cat((directions, rays.origins.cross(directions, dim=-1)), dim=-1))


class GTA(PositionEncoding):
    """GTA (arXiv 2310.10375) for 3D queries: half of a key's channels go through its camera's pose, the other half turn
    by its position in the image. The queries stand in the LiDAR frame: their transform is the identity.

    Not invariant under a translation of the frame, since the positions of queries do not enter (rope/README.md, 6).

    Args:
        metres: length that counts as 1 in translations (choice: cameras stand about that far from the LiDAR).
        wavelengths: shortest and longest along the image, in widths and heights of the image (choice).
    """

    decisive = ('metres', 'frequencies')
    frequencies: Tensor
    between_tokens = False  # a query would need the inverse matrices

    def __init__(self, num_heads: int = 8, head_dim: int = 32, metres: float = 2.0,
                 wavelengths: tuple[float, float] = (0.1, 2.0), num_layers: int = 6) -> None:
        super().__init__(num_heads, head_dim, num_layers)
        if head_dim % 8:
            raise ValueError(f'head_dim must be a multiple of 8: 4x4 matrices on half of it, not {head_dim}')
        if not metres > 0:
            raise ValueError(f'metres must be positive, not {metres}')
        self.metres = metres
        self.register_buffer('frequencies', frequencies(head_dim // 8, *wavelengths).float(), persistent=False)

    def prepare(self, rays: Rays, metas: Sequence[dict] | None = None) -> Transform:
        if rays.cameras is None or rays.img2lidar is None:
            raise ValueError(f'{type(self).__name__} needs rays that know their cameras: make them with '
                             'Rays.from_lidar2img')
        with torch.autocast(rays.origins.device.type, enabled=False):
            phase = _image_phase(rays, self.frequencies)
            columns = (*self._axes(rays.img2lidar, *rays.image_size), rays.img2lidar[..., 3] / self.metres)
            matrices = F.pad(torch.stack(columns, dim=-1), (0, 0, 0, 1))
            matrices[..., 3, 3] = 1
            batch = torch.arange(len(matrices), device=matrices.device)[:, None]
            return Transform(matrices[batch, rays.cameras], Rotation.from_phase(phase))

    def _axes(self, img2lidar: Tensor, width: float, height: float) -> tuple[Tensor, Tensor, Tensor]:
        """Columns (B, N, 3) of the rotation from camera to LiDAR: right, down, ahead; those of the inverse projection,
        made orthonormal. A flip of the image does not flip the camera."""
        along_u, along_v, principal, _ = img2lidar.unbind(-1)
        ahead = F.normalize(along_u.cross(along_v, -1), dim=-1)
        ahead = ahead * (ahead * principal).sum(-1, keepdim=True).sign()
        right = F.normalize(along_u, dim=-1)
        right = right * (ahead.cross(right, -1) * along_v).sum(-1, keepdim=True).sign()
        return right, ahead.cross(right, -1), ahead


class PRoPE(GTA):
    """PRoPE (arXiv 2507.10496) for 3D queries: as ``GTA``, with the whole projection instead of the pose. Intrinsics
    are in widths and heights of the image, from its centre."""

    def _axes(self, img2lidar: Tensor, width: float, height: float) -> tuple[Tensor, Tensor, Tensor]:
        """Columns (B, N, 3) of the inverse projection."""
        along_u, along_v, principal, _ = img2lidar.unbind(-1)
        return width * along_u, height * along_v, principal + width / 2 * along_u + height / 2 * along_v


def _image_phase(rays: Rays, waves: Tensor) -> Tensor:
    """Phases (B, 1, L, pairs) of positions in the image, of u and of v, at frequencies in rad per width and height."""
    width, height = rays.image_size
    share = torch.stack((rays.pixels[..., 0] / width, rays.pixels[..., 1] / height), dim=-1)
    return (share[..., None] * waves).flatten(-2)[:, None]
