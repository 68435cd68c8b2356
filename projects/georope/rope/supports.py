"""Supports: where along its ray a token may be (METHOD section 3)."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


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


def fixed_anchors(anchors: Sequence[float] | dict, num_heads: int, num_pairs: int,
                  channel_wise: bool = False) -> Tensor:
    """URoPE's support: one sure depth per head, or per pair in the channel-wise ablation.

    Args:
        anchors: depths in metres, or ``dict(spacing='lid', num=4, start=1., stop=60.)``.
        num_heads: heads; contiguous groups of ``num_heads / len(anchors)`` heads share an anchor (paper).
        num_pairs: rotary pairs of a head.
        channel_wise: every head holds all anchors, its pairs take them in turn (paper's ablation, much worse).

    Returns:
        Depths in metres, (heads, 1), or (1, pairs) channel-wise; (1, 1) for a single anchor.
    """
    depths = depth_anchors(**anchors) if isinstance(anchors, dict) else [float(depth) for depth in anchors]
    if not depths or min(depths) <= 0 or not all(map(math.isfinite, depths)):
        raise ValueError(f'anchors must be positive depths in metres, not {anchors}')
    if len(depths) == 1:
        return torch.tensor([depths])
    if channel_wise:
        return torch.tensor(depths).repeat(-(-num_pairs // len(depths)))[None, :num_pairs]
    if num_heads % len(depths):
        raise ValueError(f'{len(depths)} anchors do not divide {num_heads} heads into equal groups')
    return torch.tensor(depths).repeat_interleave(num_heads // len(depths))[:, None]
