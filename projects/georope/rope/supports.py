"""Supports: where along its ray a token may be (rope/README.md, 3)."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def depth_anchors(spacing: str, num: int, start: float, stop: float) -> list[float]:
    """``num`` depths from ``start`` to ``stop`` metres; the steps of ``lid`` grow linearly, as PETR's depth bins do."""
    if num < 2 or not 0 < start < stop:
        raise ValueError(f'anchors need num >= 2 and 0 < start < stop, not num={num}, start={start}, stop={stop}; '
                         'give a single anchor as a list')
    share = torch.linspace(0, 1, num, dtype=torch.float64)
    if spacing == 'linspace':
        depths = start + (stop - start) * share
    elif spacing == 'log':
        depths = start * (stop / start) ** share
    elif spacing == 'lid':
        index = torch.arange(num, dtype=torch.float64)
        depths = start + (stop - start) * index * (index + 1) / (num * (num - 1))
    else:
        raise ValueError(f"anchors: unknown spacing {spacing!r}, use 'linspace', 'lid' or 'log'")
    return depths.tolist()


def list_anchors(anchors: Sequence[float] | dict) -> list[float]:
    """Depths in metres: a list, or from ``dict(spacing='lid', num=4, start=1., stop=60.)``, see ``depth_anchors``."""
    depths = depth_anchors(**anchors) if isinstance(anchors, dict) else [float(depth) for depth in anchors]
    if not depths or min(depths) <= 0 or not all(map(math.isfinite, depths)):
        raise ValueError(f'anchors must be positive depths in metres, not {anchors}')
    return depths


def fixed_anchors(anchors: Sequence[float] | dict, num_heads: int, num_pairs: int,
                  channel_wise: bool = False) -> Tensor:
    """URoPE's support: one sure depth per head, or per pair in the channel-wise ablation.

    Args:
        anchors: see ``list_anchors``.
        num_heads: heads; contiguous groups of ``num_heads / len(anchors)`` heads share an anchor (paper).
        num_pairs: rotary pairs of a head.
        channel_wise: every head holds all anchors (paper's ablation, much worse): its pairs take them in turn, each
            head from another one on, so that every band of every axis meets every anchor in some head (choice).

    Returns:
        Depths in metres, (heads, 1), or (heads, pairs) channel-wise; (1, 1) for a single anchor.
    """
    depths = list_anchors(anchors)
    if len(depths) == 1:
        return torch.tensor([depths])
    if channel_wise:
        if num_heads < len(depths):
            raise ValueError(f'channel_wise: {len(depths)} anchors need as many heads for all bands, not {num_heads}')
        turns = torch.arange(num_heads)[:, None] + torch.arange(num_pairs)
        return torch.tensor(depths)[turns % len(depths)]
    if num_heads % len(depths):
        raise ValueError(f'{len(depths)} anchors do not divide {num_heads} heads into equal groups')
    return torch.tensor(depths).repeat_interleave(num_heads // len(depths))[:, None]


def check_depth_units(saved: Tensor | None, own: float | None, name: str) -> None:
    """Compare the focal lengths (pixels) at which the depths of a checkpoint's and of a model's predictors are metres;
    None for metres whatever the lens, as all were before there was a choice.

    Raises:
        RuntimeError: they differ; says what to do.
    """
    learnt = None if saved is None else float(saved)
    if learnt == own:
        return
    if learnt is not None and own is not None and math.isclose(learnt, own, rel_tol=0.005):  # half precision rounds
        return
    trained, wanted = ('in metres whatever the lens' if focal is None else
                       f'that are metres at {focal:g} px of focal length' for focal in (learnt, own))
    before, setting = (' (as all before reference_focal came)', 'None, and give the tools --accept-weights, since its '
                       'own config does not say so') if learnt is None else ('', f'{learnt:g}')
    raise RuntimeError(f'{name}: the checkpoint has learnt depths {trained}{before}, the config wants depths {wanted}; '
                       f'train again, or to use the checkpoint set reference_focal of the encoding to {setting}')


class PredictedDepth(nn.Linear):
    """One or more sure depths per token, predicted from its features (URoPE's ablation; 3DPPE).

    One linear layer with zero weights: whatever the features are, training starts at the given depths. Features do not
    know the lens, and an object looks the same at twice the depth through twice the focal length: what is predicted is
    a depth in units of the focal length, and ``zoom`` makes metres of it.

    A depth that the layer puts outside ``depth_range`` stays at its end, and takes the gradients that lead inside.

    Args:
        dims: channels of the features.
        anchors: where training starts, see ``list_anchors``.
        depth_range: nearest and farthest depth that may be predicted, metres.
    """

    per_depth = 1  # numbers of the linear layer for each depth
    log_depths: Tensor

    def __init__(self, dims: int, anchors: Sequence[float] | dict,
                 depth_range: tuple[float, float] = (0.5, 80.0)) -> None:
        depths = list_anchors(anchors)
        if not 0 < depth_range[0] < min(depths) <= max(depths) < depth_range[1]:
            raise ValueError(f'anchors must lie inside depth_range, which is positive: {depths} and {depth_range}')
        super().__init__(dims, self.per_depth * len(depths))
        self.register_buffer('log_depths', torch.tensor(depths, dtype=torch.float64).log().float(), persistent=False)
        self.log_range = tuple(map(math.log, depth_range))
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, features: Tensor, zoom: Tensor | None = None) -> Tensor:
        """Depths (B, L, M), metres.

        Args:
            features: (B, L, dims).
            zoom: (B, L, 1), the tokens' focal lengths over that at which the anchors are metres; None for 1.
        """
        return self._depths(super().forward(features), zoom)

    def _depths(self, offsets: Tensor, zoom: Tensor | None) -> Tensor:
        logs = self.log_depths + offsets
        return _InwardClamp.apply(logs if zoom is None else logs + zoom.log(), *self.log_range).exp()


class _InwardClamp(torch.autograd.Function):
    """``clamp``, whose gradient outside vanishes only where a step against it would lead farther away: with that of
    ``clamp`` itself a depth that once left its range would never come back."""

    @staticmethod
    def forward(ctx, x: Tensor, lower: float, upper: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = lower, upper
        return x.clamp(lower, upper)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        x, = ctx.saved_tensors
        lower, upper = ctx.bounds
        away = ((x < lower) & (grad > 0)) | ((x > upper) & (grad < 0))
        return grad.masked_fill(away, 0), None, None


class PredictedInterval(PredictedDepth):
    """RayRoPE's support: a depth and the half length of a uniform interval around it.

    Args:
        args, kwargs: see ``PredictedDepth``.
        spread: least, first and greatest half length, as shares of the depth (choice).
    """

    per_depth = 2

    def __init__(self, *args, spread: tuple[float, float, float] = (0.01, 0.35, 0.5), **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.least, first, self.greatest = spread
        if not 0 < self.least < first < self.greatest:
            raise ValueError(f'spread must be least < first < greatest share of the depth, all positive, not {spread}')
        self.bias.data.chunk(self.per_depth)[1].fill_(math.log((first - self.least) / (self.greatest - first)))

    def forward(self, features: Tensor,  # type: ignore[override]  # each predictor returns numbers of its own
                zoom: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Middles and half lengths, metres, each (B, L, M); arguments as of ``PredictedDepth``."""
        offsets, spreads = nn.Linear.forward(self, features).chunk(2, dim=-1)
        depths = self._depths(offsets, zoom)
        return depths, self._spread(depths, spreads)

    def _spread(self, depths: Tensor, spreads: Tensor) -> Tensor:
        return depths * (self.least + (self.greatest - self.least) * spreads.sigmoid())


class PredictedMixture(PredictedInterval):
    """WorldRoPE's support: a mixture of Gaussians in depth, whose deviations are predicted as half lengths are.

    The weights start equal.
    """

    per_depth = 3

    def forward(self, features: Tensor,  # type: ignore[override]  # likewise
                zoom: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and deviations (metres), each (B, L, M); arguments as of ``PredictedDepth``."""
        offsets, spreads, logits = nn.Linear.forward(self, features).chunk(3, dim=-1)
        depths = self._depths(offsets, zoom)
        return logits.softmax(-1), depths, self._spread(depths, spreads)

    def negative_log_likelihood(self, features: Tensor, depths: Tensor, zoom: Tensor | None = None) -> Tensor:
        """Of the true depths (n,), metres, of tokens with ``features`` (n, dims) and ``zoom`` (n, 1): (n,). The density
        is that of the logarithm of depth, so that near and far count alike."""
        weights, means, deviations = self(features, zoom)
        depths = depths[:, None]
        squares = ((depths - means) / deviations) ** 2
        log_density = (weights.clamp(min=1e-30) * depths / deviations).log() - 0.5 * (squares + math.log(2 * math.pi))
        return -log_density.logsumexp(-1)
