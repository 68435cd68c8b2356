"""What the heads need to know of the cameras of a batch, from the meta information of its samples."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from mmdet3d.structures import Det3DDataSample
from torch import Tensor

from georope.rope import Rays
from georope.rope.transfer import to_device


@dataclass(frozen=True)
class Cameras:
    """The cameras of all image tokens, in the order (camera, row, column).

    Attributes:
        rays: of the tokens.
        focal_lengths: (B, L, 2) of each token's camera, pixels, negative where an image is flipped; None where nothing
            asks for them.
        padding: bool (B, L), True for padding; None where there is none.
    """

    rays: Rays
    focal_lengths: Tensor | None
    padding: Tensor | None

    @classmethod
    def concatenate(cls, scales: Sequence[Cameras]) -> Cameras:
        """Those of the tokens of several feature maps of the same images, one map's behind the other's."""
        if len(scales) == 1:
            return scales[0]
        focal_lengths = [scale.focal_lengths for scale in scales if scale.focal_lengths is not None]
        focal = torch.cat(focal_lengths, dim=1) if focal_lengths else None
        padding = None
        if any(scale.padding is not None for scale in scales):
            padding = torch.cat([torch.zeros_like(scale.rays.origins[..., 0], dtype=torch.bool) if scale.padding is None
                                 else scale.padding for scale in scales], dim=1)
        return cls(Rays.concatenate([scale.rays for scale in scales]), focal, padding)

    def select(self, tokens: Tensor) -> Cameras:
        """Those of some tokens, indices (B, K)."""
        focal, padding = self.focal_lengths, self.padding
        return Cameras(self.rays.select(tokens),
                       None if focal is None else focal.gather(1, tokens[..., None].expand(-1, -1, 2)),
                       None if padding is None else padding.gather(1, tokens))


# Meta information with one item per camera.
PER_CAMERA = ('lidar2img', 'lidar2cam', 'cam2img', 'img_path', 'filename', 'img_shape', 'ori_shape', 'cam_names')


def as_maps(features: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The feature maps of a head: one stands for itself."""
    return [features] if isinstance(features, Tensor) else list(features)


def as_strides(stride: int | Sequence[int]) -> tuple[int, ...]:
    """Those of a head's feature maps: one stands for itself."""
    return (stride, ) if isinstance(stride, int) else tuple(stride)


def sample_name(meta: dict) -> str:
    """How error messages call a sample: its nuScenes token."""
    return str(meta.get('token', meta.get('sample_idx', 'without token')))


def stack_matrices(metas: Sequence[dict], key: str, num_cameras: int, size: int) -> Tensor:
    """The leading ``size`` x ``size`` block of the matrices ``meta[key]`` of all samples and cameras.

    Args:
        metas: meta information of the samples; ``meta[key]`` is (N, at least size, at least size).
        key: 'lidar2img' or 'cam2img'.
        num_cameras: N, the number of images of each sample.

    Returns:
        (B, N, size, size), float64, on the CPU.

    Raises:
        ValueError: if a matrix is missing, not finite or singular; names sample and camera.
    """
    stacked = []
    for meta in metas:
        if key not in meta:
            raise ValueError(f'sample {sample_name(meta)}: no {key!r} in its meta information; pack it '
                             '(georope.PackCameraInputs does)')
        matrices = np.asarray(meta[key], dtype=np.float64)
        if matrices.ndim != 3 or len(matrices) != num_cameras or min(matrices.shape[1:]) < size:
            raise ValueError(f'sample {sample_name(meta)}: {key} must be ({num_cameras}, {size}, {size}), one matrix '
                             f'per image, not {matrices.shape}')
        matrices = matrices[:, :size, :size]
        finite = np.isfinite(matrices).all((1, 2))
        good = finite & (np.abs(np.linalg.det(np.where(finite[:, None, None], matrices, 0))) > 1e-9)
        if not good.all():
            names = meta.get('cam_names', range(num_cameras))
            raise ValueError(f'sample {sample_name(meta)}: {key} is singular or not finite for cameras '
                             f'{[name for name, ok in zip(names, good) if not ok]}; check the calibration')
        stacked.append(matrices)
    return torch.from_numpy(np.stack(stacked))


def without_missing(imgs: Tensor, data_samples: Sequence[Det3DDataSample]
                    ) -> tuple[Tensor, Sequence[Det3DDataSample]]:
    """A batch without the cameras that none of its samples has, so that results are, to the bit, those of a rig without
    them. Cameras that some samples lack stay: their tokens are padding, see :func:`padded_tokens`.

    Args:
        imgs: (B, N, 3, height, width).
        data_samples: with ``missing_cameras``, a list of ``cam_names``, where a camera is missing.

    Returns:
        Images of the remaining cameras, and copies of the samples for them; the given ones where all cameras stay.
    """
    gone = [{meta['cam_names'].index(name) for name in meta.get('missing_cameras') or ()}
            for meta in (sample.metainfo for sample in data_samples)]
    kept = sorted(set(range(imgs.shape[1])) - set.intersection(*gone))
    if len(kept) == imgs.shape[1]:
        return imgs, data_samples
    samples = []
    for sample in data_samples:
        copy, meta = sample.new(), sample.metainfo
        copy.set_metainfo({key: [meta[key][i] for i in kept] for key in PER_CAMERA if key in meta})
        if 'gt_cameras' in sample:
            copy.gt_cameras = [sample.gt_cameras[i] for i in kept]
        samples.append(copy)
    return imgs[:, kept], samples


def padded_tokens(metas: Sequence[dict], num_cameras: int, feature_size: tuple[int, int], stride: int,
                  device: torch.device) -> Tensor | None:
    """Which image tokens are padding: those whose centre lies outside the valid image.

    Args:
        metas: meta information; ``img_shape`` is (h, w) for all cameras of the sample or a list with one per camera.
        feature_size: rows and columns of the feature map.
        stride: pixels per cell.

    Returns:
        bool (B, N * H * W), True for padding; None where there is none, so that attention runs without a mask.
    """
    rows, columns = feature_size
    height, width = np.stack([np.broadcast_to(np.asarray(meta['img_shape'], dtype=int)[..., :2], (num_cameras, 2))
                              for meta in metas]).transpose(2, 0, 1)[..., None, None]
    below = (np.arange(rows) + 0.5)[:, None] * stride >= height
    beside = (np.arange(columns) + 0.5) * stride >= width
    padding = below | beside
    if not padding.any():
        return None
    return to_device(torch.from_numpy(padding.reshape(len(metas), -1)), device)
