"""Rotations: coefficients of rotary pairs, how they act on queries, keys and values (METHOD sections 4 and 5).

Neighbouring channels form a pair, the complex number ``x1 + i x2``; a coefficient multiplies it.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Rotation:
    """Coefficients ``cos + i sin`` of the rotary pairs of queries or keys.

    Attributes:
        cos, sin: (B, 1 or heads, L, pairs), float32 or float64. An unrotated pair has cos 1, sin 0.
        temperature: scale of the keys, broadcastable to (B, heads, L, 1), or None.
        rotate_values: whether values turn with their keys and outputs are turned back by the query (V/O rotation).
        coefficients: (B, L, 1 or heads, pairs), complex, in the memory order of projected tokens; made once.
    """

    cos: Tensor
    sin: Tensor
    temperature: Tensor | None = None
    rotate_values: bool = True
    coefficients: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.coefficients = torch.complex(self.cos.transpose(1, 2).contiguous(), self.sin.transpose(1, 2).contiguous())

    @classmethod
    def from_phase(cls, phase: Tensor, rotate_values: bool = True) -> Rotation:
        """A pure rotation by ``phase`` (B, 1 or heads, L, pairs), in rad."""
        return cls(phase.cos(), phase.sin(), rotate_values=rotate_values)


def apply(x: Tensor, rotation: Rotation) -> Tensor:
    """Multiply the pairs of ``x`` (B, L, heads, head_dim) with the coefficients; the dtype of ``x`` stays."""
    return _multiply(x, rotation.coefficients)


def undo(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn ``x`` (B, L, heads, head_dim) back: multiply its pairs with the conjugate coefficients."""
    return _multiply(x, rotation.coefficients.conj())


def _multiply(x: Tensor, coefficients: Tensor) -> Tensor:
    pairs = coefficients.shape[-1]
    if x.shape[-1] != 2 * pairs:
        raise ValueError(f'the rotation has {pairs} pairs, the heads are {x.shape[-1]} wide: head_dim of the encoding '
                         'and of the attention must agree')
    # Half precision is widened: only the product is rounded, never the phases.
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (pairs, 2))
    return torch.view_as_real(torch.view_as_complex(wide) * coefficients).flatten(-2).to(x.dtype)
