"""Rotary encodings of 3D positions, each made of a support, bands and options; the interface is in ``base``."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .bands import XY_WAVELENGTHS, Bands
from .base import PositionEncoding, Support
from .cameras import Pluecker
from .rays import Rays
from .rotation import LEAST_EXPONENT, Rotation, expected_rotation
from .supports import (
    PredictedDepth,
    PredictedInterval,
    PredictedMixture,
    check_depth_units,
    fixed_anchors,
    list_anchors,
)

ANCHORS = (5, 12, 25, 45)
REFERENCE_FOCAL = 560.0
TEMPERATURES = ('none', 'learned', 'key_rms', 'token')


class NoEncoding(PositionEncoding):
    """No position encoding at all (plain PETR). Arguments as for ``PositionEncoding``."""


class RoPE3D(PositionEncoding):
    """Exact 3D RoPE among points, for self-attention; base of the encodings that bring image tokens into it.

    Args:
        bands: ``'axial'`` (paper), ``'mixed'`` (our choice), or a dict with their options, see ``Bands``.
        rotate_values: rotate values and outputs too; stated by WorldRoPE's paper only (rope/README.md, 5).
    """

    decisive: tuple[str, ...] = ('rotate_values', 'bands.frequencies', 'bands.directions')

    def __init__(self, num_heads: int = 8, head_dim: int = 32, bands: str | dict = 'axial', rotate_values: bool = True,
                 num_layers: int = 6) -> None:
        super().__init__(num_heads, head_dim, num_layers)
        self.rotate_values = rotate_values
        self.bands = Bands(bands, num_heads, head_dim)

    def rotate_queries(self, points: Tensor, times: Tensor | None = None, spreads: Tensor | None = None) -> Rotation:
        """The exact rotation of ``points`` (B, Q, 3), metres, LiDAR frame; ``times`` are not used. With ``spreads``
        (B, Q, n, 3), standard deviations along n independent lines, in metres, its mean over a Gaussian."""
        with torch.autocast(points.device.type, enabled=False):
            dtype = torch.promote_types(points.dtype, torch.float32)
            rotation = self._rotation(self.bands(points.to(dtype)))
            if spreads is None:
                return rotation
            exponent = -0.5 * self.bands(spreads.to(dtype)).square().sum(2)  # (B, Q, 1 or heads, pairs)
            damping = exponent.clamp(min=LEAST_EXPONENT).exp().transpose(1, 2)
            return Rotation(damping * rotation.cos, damping * rotation.sin, rotate_values=self.rotate_values)

    def _rotation(self, phase: Tensor) -> Rotation:
        """Of ``phase`` (B, L, 1 or heads, pairs)."""
        return Rotation.from_phase(phase.transpose(1, 2), self.rotate_values)


class BEVTimeRoPE(RoPE3D):
    """RoPETR's encoding of queries (arXiv 2504.12643) for self- and temporal attention: RoPE on BEV x, y and on time.

    Args:
        xy: shortest and longest wavelength in the BEV plane, metres.
        time: shortest and longest period, seconds (choice).
    """

    decisive = ()

    def __init__(self, num_heads: int = 8, head_dim: int = 32, xy: tuple[float, float] = XY_WAVELENGTHS,
                 time: tuple[float, float] = (1.0, 16.0), rotate_values: bool = False, num_layers: int = 6) -> None:
        super().__init__(num_heads, head_dim, dict(type='axial', xy=xy, z=time), rotate_values,
                         num_layers)

    def rotate_queries(self, points: Tensor,  # type: ignore[override]  # no spreads: none is known of times
                       times: Tensor | None = None) -> Rotation:
        """The rotation of ``points`` (B, Q, 3) at ``times`` (B, Q) in seconds from now, None for now."""
        times = torch.zeros_like(points[..., 0]) if times is None else times.to(points.dtype)
        return super().rotate_queries(torch.cat((points[..., :2], times[..., None]), dim=-1))


class URoPE(RoPE3D):
    """URoPE (arXiv 2604.18747) between image tokens and 3D points: each group of heads has one fixed depth.

    Args:
        anchors: depths in metres, or ``dict(spacing='linspace' | 'lid' | 'log', num=, start=, stop=)``; the default is
            our choice for nuScenes. The paper finds 4 best.
        channel_wise: split the anchors over the pairs of each head instead of over heads (paper's ablation).
        bands, rotate_values: see ``RoPE3D``.
        pluecker: add ``Pluecker``'s embedding to the keys as well (paper's ablation).
    """

    decisive = ('depths',)
    depths: Tensor

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = ANCHORS,
                 channel_wise: bool = False, bands: str | dict = 'axial', rotate_values: bool = True,
                 pluecker: bool = False, num_layers: int = 6) -> None:
        super().__init__(num_heads, head_dim, bands, rotate_values, num_layers)
        self.absolute = (Pluecker if pluecker else NoEncoding)(num_heads, head_dim)
        self.register_buffer('depths', fixed_anchors(anchors, num_heads, head_dim // 2, channel_wise), persistent=False)

    def token_depths(self, rays: Rays) -> Tensor:
        """Depths of tokens in metres, broadcastable to (B, L, heads, pairs). Override it to move the tokens."""
        return self.depths

    def prepare(self, rays: Rays, metas: Sequence[dict] | None = None) -> Rotation:
        """The rotation of all tokens: it depends on cameras and pixels only."""
        with torch.autocast(rays.origins.device.type, enabled=False):
            return self._rotation(self.bands(rays.origins) + self.token_depths(rays) * self.bands(rays.directions))

    def embed_keys(self, rays: Rays) -> Tensor | None:
        return self.absolute.embed_keys(rays)

    def support(self, rays: Rays, features: Tensor, layer: int = 0) -> Support:
        """The depth of each head or pair; they have equal shares of the channels."""
        depths = self.token_depths(rays)
        return Support(depths.expand(*rays.origins.shape[:2], *depths.shape[-2:]).flatten(2))


@dataclass
class Frame:
    """What cameras and pixels decide for all layers and depths, see ``expected_rotation``.

    Attributes:
        rays: of the tokens.
        origin, along, patch: (B, L, distinct bands): ``w.o``, ``w.r`` and A.
        zoom: (B, L, 1), focal lengths over ``reference_focal``, or None.
        shared: the rotation of all layers, once it is made, where one predictor serves them.
    """

    rays: Rays
    origin: Tensor
    along: Tensor
    patch: Tensor
    zoom: Tensor | None = None
    shared: Rotation | None = None


class PredictedRoPE(RoPE3D):
    """Base of the encodings that predict depths from the features of image tokens. A subclass names its ``predictor``
    and defines ``_rotate`` and ``_describe``.

    Args:
        anchors: depths at which training starts, as for ``URoPE``.
        per_layer: a predictor for each decoder layer; False shares one, which sees the features of the first.
        bands, rotate_values: see ``RoPE3D``.
        num_layers: decoder layers.
        reference_focal: focal length, in pixels of the network's input, at which the anchors are metres (choice: about
            that of nuScenes' cameras at 256x704); through another one predicted depths are as many times greater, so
            that a token need not know its lens. None for depths in metres, whatever the lens.
        support: further arguments of the predictor, ``depth_range`` and, unless the depth is sure, ``spread``: see
            ``PredictedDepth`` and ``PredictedInterval``.
    """

    decisive: tuple[str, ...] = ('predictors.0.log_depths', 'predictors.0.log_range', 'focal_unit')
    predicts = True
    predictor: type[PredictedDepth] = PredictedDepth

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = ANCHORS,
                 per_layer: bool = True, bands: str | dict = 'axial', rotate_values: bool = True, num_layers: int = 6,
                 reference_focal: float | None = REFERENCE_FOCAL, **support) -> None:
        super().__init__(num_heads, head_dim, bands, rotate_values, num_layers)
        if reference_focal is not None and not 0 < reference_focal < inf:
            raise ValueError(f'reference_focal must be a length in pixels or None, not {reference_focal}')
        self.focal_unit = None if reference_focal is None else float(reference_focal)
        # In checkpoints, since predictors of one unit must not run with another.
        self.register_buffer('reference_focal', None if self.focal_unit is None else torch.tensor([self.focal_unit]))
        self.per_layer = per_layer
        self.predictors = nn.ModuleList(self.predictor(num_heads * head_dim, anchors, **support)
                                        for _ in range(num_layers if per_layer else 1))

    def prepare(self, rays: Rays, metas: Sequence[dict] | None = None) -> Frame:
        with torch.autocast(rays.origins.device.type, enabled=False):
            patch = rays.patch_variance * self.bands.distinct(rays.footprints).square().sum(2)
            geometry = replace(rays, cameras=None)  # no layer asks which camera a token belongs to
            return Frame(geometry, self.bands.distinct(rays.origins), self.bands.distinct(rays.directions), patch,
                         self._zoom(rays))

    def rotate_keys(self, frame: Frame, features: Tensor, layer: int = 0) -> Rotation:
        """The rotation of tokens with ``features`` (B, L, num_heads * head_dim) in a decoder layer."""
        if frame.shared is not None:
            return frame.shared
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(frame.along.dtype)
            rotation = self._rotate(frame, self._predict(features, layer, frame.zoom), features)
        if not self.per_layer:
            frame.shared = rotation
        return rotation

    def support(self, rays: Rays, features: Tensor, layer: int = 0) -> Support:
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(rays.directions.dtype)
            return self._describe(self._predict(features, layer, self._zoom(rays)))

    def _rotate(self, frame: Frame, support: Any, features: Tensor) -> Rotation:
        """The rotation of tokens with ``features`` (B, L, C) and what the predictor returned for them."""
        raise NotImplementedError

    def _describe(self, support: Any) -> Support:
        """The same for pictures."""
        raise NotImplementedError

    def _predict(self, features: Tensor, layer: int, zoom: Tensor | None) -> Any:
        return self.predictors[layer if self.per_layer else 0](features, zoom)

    def _zoom(self, rays: Rays) -> Tensor | None:
        return None if self.focal_unit is None else rays.focal_lengths[..., None] / self.focal_unit

    def check_checkpoint(self, tensors: Mapping[str, Tensor], prefix: str = '') -> None:
        """Refuse a state dict whose predictors know depths in other units, see ``check_depth_units``; one without
        predictors is not refused."""
        if f'{prefix}predictors.0.weight' in tensors:
            check_depth_units(tensors.get(f'{prefix}reference_focal'), self.focal_unit, f'{prefix}predictors')

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        self.check_checkpoint(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


class LearnedDepth(PredictedRoPE):
    """URoPE's ablation: one predicted depth per token, taken as certain, or one for each group of heads.

    Args:
        anchors: the depth at which training starts, or as many as there are groups of heads, see ``fixed_anchors``.
    """

    decisive = ()

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = (20, ),
                 **kwargs) -> None:
        super().__init__(num_heads, head_dim, anchors, **kwargs)
        fixed_anchors(anchors, num_heads, head_dim // 2)  # refuses numbers that do not divide the heads

    def _rotate(self, frame: Frame, support: Tensor, features: Tensor) -> Rotation:
        if support.shape[-1] == 1:
            return self._rotation(self.bands.spread(frame.origin + support * frame.along))
        depths = support.repeat_interleave(self.num_heads // support.shape[-1], dim=-1)[..., None]
        return self._rotation(self.bands.spread(frame.origin) + depths * self.bands.spread(frame.along))

    def _describe(self, support: Tensor) -> Support:
        return Support(support)


class RayRoPE(PredictedRoPE):
    """RayRoPE (arXiv 2601.15275) in 3D: a token lies somewhere in one predicted interval of its ray.

    The mean rotation over the interval is exact, since a point of the ray is affine in its depth: that of the middle,
    times ``sinc(w.r * half length)``.
    """

    decisive = ('predictors.0.least', 'predictors.0.greatest')
    predictor = PredictedInterval

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = (20, ),
                 **kwargs) -> None:
        super().__init__(num_heads, head_dim, anchors, **kwargs)
        if len(list_anchors(anchors)) != 1:
            raise ValueError(f'RayRoPE starts at one depth, not at anchors {anchors}')

    def _rotate(self, frame: Frame, support: tuple[Tensor, Tensor], features: Tensor) -> Rotation:
        depth, half = support
        phase = frame.origin + depth * frame.along
        mean = torch.sinc(half * frame.along / torch.pi)
        cos, sin = (self.bands.spread(mean * x).transpose(1, 2) for x in (phase.cos(), phase.sin()))
        return Rotation(cos, sin, rotate_values=self.rotate_values)

    def _describe(self, support: tuple[Tensor, Tensor]) -> Support:
        depths, half = support
        return Support(depths, spreads=half, uniform=True)


class WorldRoPE(PredictedRoPE):
    """WorldRoPE (arXiv 2610.16337) between image tokens and 3D points: the expected rotation over a predicted mixture
    of Gaussians in depth and over the patch. What the paper does not say is our choice, see rope/README.md, 3 to 5.

    Args:
        anchors: means at which training starts, as for ``URoPE``: as many hypotheses.
        per_layer, bands, rotate_values, reference_focal, support: see ``PredictedRoPE``.
        temperature: scales keys, which uncertainty shortens, up again: ``'none'``; ``'learned'``, a scale per head;
            ``'key_rms'``, one over the root mean square of a token's coefficients; ``'token'``, that times a scale per
            head predicted from the token's features. Layers share what is learned of it.
        max_temperature: upper bound of ``key_rms``.
        query_deviation: standard deviation (x, y, z) in metres of a Gaussian around each query, about a box; its mean
            rotation damps the short waves of queries and outputs. None for exact points.
        depth_loss_weight: weight of ``depth_loss`` in ``losses``; 0 for none.
    """

    decisive = ('predictors.0.least', 'predictors.0.greatest', 'temperature', 'max_temperature', 'query_deviation')
    predictor = PredictedMixture
    log_scale: Tensor | nn.Module | None
    query_deviation: Tensor | None

    def __init__(self, num_heads: int = 8, head_dim: int = 32, anchors: Sequence[float] | dict = ANCHORS,
                 per_layer: bool = True, bands: str | dict = 'axial', rotate_values: bool = True,
                 temperature: str = 'key_rms', max_temperature: float = 4.0,
                 query_deviation: Sequence[float] | None = None, depth_loss_weight: float = 0.0, num_layers: int = 6,
                 reference_focal: float | None = REFERENCE_FOCAL, **support) -> None:
        super().__init__(num_heads, head_dim, anchors, per_layer, bands, rotate_values, num_layers, reference_focal,
                         **support)
        if temperature not in TEMPERATURES:
            raise ValueError(f'temperature: unknown {temperature!r}, use one of {TEMPERATURES}')
        if query_deviation is not None and (
                len(query_deviation) != 3 or not all(0 <= length < inf for length in query_deviation)):
            raise ValueError(f'query_deviation must be three lengths (x, y, z) in metres, not {query_deviation}')
        self.temperature, self.max_temperature = temperature, max_temperature
        self.depth_loss_weight = depth_loss_weight
        self.log_scale = nn.Parameter(torch.zeros(1, num_heads, 1, 1)) if temperature == 'learned' else None
        if temperature == 'token':
            linear = nn.Linear(num_heads * head_dim, num_heads)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
            self.log_scale = linear
        deviation = None if query_deviation is None else torch.tensor(query_deviation, dtype=torch.float32)
        self.register_buffer('query_deviation', deviation, persistent=False)

    def rotate_queries(self, points: Tensor, times: Tensor | None = None, spreads: Tensor | None = None) -> Rotation:
        rotation = super().rotate_queries(points, spreads=spreads)
        if self.query_deviation is None:
            return rotation
        vectors = self.bands.vectors.to(rotation.cos.dtype)
        damping = torch.exp(-0.5 * (vectors * self.query_deviation).square().sum(-1))[:, None]
        return Rotation(damping * rotation.cos, damping * rotation.sin, rotate_values=self.rotate_values)

    def depth_loss(self, frame: Frame, features: Tensor, points: Tensor, padding: Tensor | None = None) -> Tensor:
        """Negative log likelihood of the depth of tokens that see a point, the nearest of several: (tokens,), the mean
        over the predictors.

        Args:
            frame, features: as for ``rotate_keys``.
            points: (B, n, 3) object centres, metres, LiDAR frame; NaN for none. A hidden object counts as seen.
            padding: bool (B, L), True for tokens that see nothing.
        """
        with torch.autocast(features.device.type, enabled=False):
            depths = frame.rays.locate(F.pad(points, (0, 0, 0, 1), value=torch.nan)).amin(-1)  # n may be 0
            seen = depths.isfinite() if padding is None else depths.isfinite() & ~padding
            tokens = seen.flatten().nonzero()[:, 0]  # once: the host waits for their number
            features, depths = features.to(depths.dtype).flatten(0, 1)[tokens], depths.flatten()[tokens]
            zoom = None if frame.zoom is None else frame.zoom.flatten(0, 1)[tokens]
            return torch.stack([predictor.negative_log_likelihood(features, depths, zoom)
                                for predictor in cast('Iterable[PredictedMixture]', self.predictors)]).mean(0)

    def losses(self, frame: Frame, features: Tensor, points: Tensor,
               padding: Tensor | None = None) -> dict[str, Tensor]:
        """``loss_depth``, see ``depth_loss``, if it has a weight."""
        if not self.has_losses:
            return {}
        return dict(loss_depth=self.depth_loss_weight * self.depth_loss(frame, features, points, padding))

    @property
    def has_losses(self) -> bool:
        return self.depth_loss_weight != 0

    def _describe(self, support: tuple[Tensor, Tensor, Tensor]) -> Support:
        weights, depths, deviations = support
        return Support(depths, weights, deviations, patch=True)

    def _rotate(self, frame: Frame, support: tuple[Tensor, Tensor, Tensor], features: Tensor) -> Rotation:
        mean = expected_rotation(*support, frame.origin, frame.along, frame.patch).flatten(-2)
        rotation = Rotation.from_coefficients(self.bands.spread(mean, 2).unflatten(-1, (-1, 2)), self.rotate_values)
        rotation.temperature = self._temperature(rotation, features)
        return rotation

    def _temperature(self, rotation: Rotation, features: Tensor) -> Tensor | None:
        """(B or 1, 1 or heads, 1 or L, 1)."""
        if self.temperature == 'none':
            return None
        if isinstance(self.log_scale, Tensor):
            return self.log_scale.exp()
        pairs = rotation.coefficients.transpose(1, 2)
        mean_square = torch.linalg.vector_norm(pairs, dim=(-2, -1)).square()[..., None] / pairs.shape[-2]
        key_rms = (mean_square + 1e-4).rsqrt().clamp(max=self.max_temperature)
        if self.log_scale is None:
            return key_rms
        return key_rms * self.log_scale(features).exp().transpose(1, 2).unsqueeze(-1)
