"""The small networks of the heads."""
from __future__ import annotations

from torch import nn

from .box_code import CODE_SIZE


def mlp(in_channels: int, hidden: int, out_channels: int) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(in_channels, hidden), nn.ReLU(), nn.Linear(hidden, out_channels))


def cls_branch(dims: int, num_classes: int) -> nn.Sequential:
    """Logits of a query's classes."""
    return nn.Sequential(nn.Linear(dims, dims), nn.LayerNorm(dims), nn.ReLU(), nn.Linear(dims, dims),
                         nn.LayerNorm(dims), nn.ReLU(), nn.Linear(dims, num_classes))


def reg_branch(dims: int) -> nn.Sequential:
    """The box code of a query, its centre relative to the reference point."""
    return nn.Sequential(nn.Linear(dims, dims), nn.ReLU(), nn.Linear(dims, dims), nn.ReLU(), nn.Linear(dims, CODE_SIZE))
