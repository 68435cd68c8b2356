"""Rotations: coefficients of rotary pairs, how they act on queries, keys and values (rope/README.md, 4 and 5).

Neighbouring channels ``x1, x2`` form a pair, which turns to ``cos x1 - sin x2, sin x1 + cos x2``.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_EXPONENT = -60.0
CACHED = 2 ** 17  # numbers in a block of tokens, see _blocks

# Whether torch.compile or torch.export read the code: they get plain formulas, which compilers derive and fuse.
# torch 2.1 does not tell.
_compiling = getattr(torch.compiler, 'is_compiling', lambda: False)


@dataclass
class Rotation:
    """Coefficients ``cos, sin`` of the rotary pairs of queries or keys.

    Attributes:
        cos, sin: (B, 1 or heads, L, pairs), float32 or float64. An unrotated pair has cos 1, sin 0.
        temperature: scale of the keys, broadcastable to (B, heads, L, 1), or None.
        rotate_values: whether values turn with their keys and outputs are turned back by the query (V/O rotation).
        coefficients: (B, L, 1 or heads, pairs, 2), both in the memory order of projected tokens; made of cos and sin,
            which then are views of it.
    """

    cos: Tensor
    sin: Tensor
    temperature: Tensor | None = None
    rotate_values: bool = True
    coefficients: Tensor = field(default=None, repr=False)  # type: ignore[assignment]  # None only as an argument

    def __post_init__(self) -> None:
        if self.coefficients is None:
            self.coefficients = torch.stack((self.cos.transpose(1, 2), self.sin.transpose(1, 2)), dim=-1)
        self.cos, self.sin = self.coefficients.transpose(1, 2).unbind(-1)

    @classmethod
    def from_coefficients(cls, coefficients: Tensor, rotate_values: bool = True) -> Rotation:
        """Of ``coefficients`` (B, L, 1 or heads, pairs, 2)."""
        cos, sin = coefficients.transpose(1, 2).unbind(-1)
        return cls(cos, sin, rotate_values=rotate_values, coefficients=coefficients)

    @classmethod
    def from_phase(cls, phase: Tensor, rotate_values: bool = True) -> Rotation:
        """A pure rotation by ``phase`` (B, 1 or heads, L, pairs), in rad."""
        return cls(phase.cos(), phase.sin(), rotate_values=rotate_values)

    def apply(self, x: Tensor, tempered: bool = False) -> Tensor:
        """Turn the pairs of ``x`` (B, L, heads, head_dim), and multiply them with the temperature where ``tempered``;
        the dtype of ``x`` stays."""
        temperature = self.temperature if tempered else None
        return _multiply(x, self.coefficients, None if temperature is None else temperature.transpose(1, 2))

    def undo(self, x: Tensor) -> Tensor:
        """Turn ``x`` (B, L, heads, head_dim) by the conjugate: back, where the rotation is pure."""
        return _multiply(x, self.coefficients, conjugate=True)

    def every(self, step: int) -> Rotation:
        """That of every ``step``-th token."""
        temperature = self.temperature
        if temperature is not None and temperature.shape[2] > 1:
            temperature = temperature[:, :, ::step]
        rotation = Rotation.from_coefficients(self.coefficients[:, ::step], self.rotate_values)
        rotation.temperature = temperature
        return rotation


@dataclass
class Transform:
    """A matrix per token on one half of every head's channels, a rotation on the other (GTA, PRoPE).

    The queries' transform is the identity, hence None, so there is nothing to undo.

    Attributes:
        matrices: (B, L, 4, 4), float32 or float64; each acts on channels in groups of four.
        rotation: of the second half of the channels.
    """

    matrices: Tensor
    rotation: Rotation
    rotate_values: bool = True

    def apply(self, x: Tensor, tempered: bool = False) -> Tensor:
        """Transform ``x`` (B, L, heads, head_dim); the dtype of ``x`` stays."""
        first, second = x.chunk(2, dim=-1)
        groups = first.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 1, 4))
        # An elementwise sum: a matrix product would run in TF32 where that is switched on.
        first = (groups * self.matrices[:, :, None, None]).sum(-1).flatten(-2).to(x.dtype)
        return torch.cat((first, self.rotation.apply(second)), dim=-1)


def expected_rotation(weights: Tensor, depths: Tensor, deviations: Tensor, origin: Tensor, along: Tensor,
                      patch: Tensor) -> Tensor:
    """The mean of ``e^{i w.X}`` over a mixture of Gaussians in depth and the patch's extent (rope/README.md, 4):

        c(w) = sum_m pi_m exp(-1/2 [(mu_m^2 + sigma_m^2) A + sigma_m^2 B]) exp(i (w.o + mu_m w.r)),   B = (w.r)^2

    Args:
        weights, depths, deviations: (B, L, M): pi, mu and sigma; metres.
        origin, along, patch: (B, L, bands): ``w.o`` (rad), ``w.r`` (rad/m) and A (rad^2/m^2).

    Returns:
        (B, L, bands, 2), real and imaginary part.
    """
    inputs = weights, depths, deviations, origin, along, patch
    if not _compiling():
        return _ExpectedRotation.apply(*inputs)
    terms = ((weight * attenuation, phase)
             for weight, _, _, attenuation, phase in _terms(*inputs, square=along.square()))
    return sum((torch.stack((size * phase.cos(), size * phase.sin()), dim=-1) for size, phase in terms),
               start=origin.new_zeros(()))


class _ExpectedRotation(torch.autograd.Function):
    """Written out because autograd would keep a dozen tensors (B, L, bands) per hypothesis and layer: this keeps its
    inputs, most of which all layers share, and computes the terms again."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        mean = inputs[4].new_empty(*inputs[4].shape, 2)
        for total, *block in _blocks(mean, *inputs):
            cos, sin = torch.zeros_like(block[4]), torch.zeros_like(block[4])
            for weight, _, _, attenuation, phase in _terms(*block, square=block[4].square()):
                attenuation *= weight
                cos.addcmul_(attenuation, phase.cos())
                sin.addcmul_(attenuation, phase.sin_())
            torch.complex(cos, sin, out=torch.view_as_complex(total))
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        inputs = ctx.saved_tensors
        results = [torch.zeros_like(x) if i < 3 or ctx.needs_input_grad[i] else None for i, x in enumerate(inputs)]
        for grad_cos, grad_sin, *block in _blocks(*grad.unbind(-1), *inputs, *results):
            grad_cos, grad_sin = grad_cos.contiguous(), grad_sin.contiguous()
            along, patch = block[4:6]
            square = along.square()
            *to_support, to_origin, to_along, to_patch = block[6:]
            support = zip(*(x.split(1, dim=-1) for x in to_support))
            for (weight, depth, deviation, attenuation, phase), (to_weight, to_depth, to_deviation) in zip(
                    _terms(*block[:6], square=square), support):
                cos, sin = phase.cos().mul_(attenuation), phase.sin_().mul_(attenuation)
                # Derivatives of grad . (cos, sin) in the logarithm of the amplitude and in the phase.
                radial = (grad_cos * cos).addcmul_(grad_sin, sin)
                turning = (grad_sin * cos).addcmul_(grad_cos, sin, value=-1)
                # Not vecdot: autocast, if it is on around the backward pass, would take that in half precision.
                extent, spread, forward = ((x * y).sum(-1, keepdim=True) for x, y in (
                    (radial, patch), (radial, square), (turning, along)))
                to_weight.copy_(radial.sum(-1, keepdim=True))
                to_depth.copy_(weight * (forward - depth * extent))
                to_deviation.copy_(-weight * deviation * (extent + spread))
                if to_origin is not None:
                    to_origin.addcmul_(turning, weight)
                if to_along is not None:
                    to_along += weight * (depth * turning - deviation ** 2 * along * radial)
                if to_patch is not None:
                    to_patch.addcmul_(radial, weight * (depth ** 2 + deviation ** 2), value=-0.5)
        return tuple(results)


def _blocks(first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Tensors (B, L, ...) in blocks of tokens whose intermediate results fit a CPU's cache; a GPU takes all at once."""
    block = first.shape[1] if first.is_cuda else max(1, CACHED // first.shape[-1])
    return zip(*(repeat(None) if x is None else x.split(block, dim=1) for x in (first, *others)))


def _terms(weights: Tensor, depths: Tensor, deviations: Tensor, origin: Tensor, along: Tensor, patch: Tensor, *,
           square: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Of each hypothesis: weight, depth, deviation (B, L, 1), attenuation and phase (B, L, bands)."""
    for weight, depth, deviation in zip(*(x.split(1, dim=-1) for x in (weights, depths, deviations))):
        exponent = (-0.5 * deviation ** 2 * square).addcmul_(-0.5 * (depth ** 2 + deviation ** 2), patch)
        attenuation = exponent.clamp_(min=LEAST_EXPONENT).exp_()
        yield weight, depth, deviation, attenuation, torch.addcmul(origin, depth, along)


def _multiply(x: Tensor, coefficients: Tensor, temperature: Tensor | None = None, conjugate: bool = False) -> Tensor:
    """``tau c x`` of every pair, or with the conjugate of ``c``. Half precision is widened: only the product is
    rounded, never the phases."""
    pairs = coefficients.shape[-2]
    if x.shape[-1] != 2 * pairs:
        raise ValueError(f'the rotation has {pairs} pairs, the heads are {x.shape[-1]} wide: head_dim of the encoding '
                         'and of the attention must agree')
    if not _compiling():
        return _Product.apply(x, coefficients, temperature, conjugate)
    cos, sin = coefficients[..., 0], coefficients[..., 1] * (-1 if conjugate else 1)
    dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
    x1, x2 = x[..., ::2], x[..., 1::2]
    product = torch.stack((cos * x1 - sin * x2, sin * x1 + cos * x2), dim=-1).flatten(-2)
    return (product if temperature is None else product * temperature).to(dtype)


class _Product(torch.autograd.Function):
    """Written out for two reasons. Unless compiled, one product of complex numbers is three times as fast on a CPU as
    what replaces it in real ones, four products and two sums of every other number; and autograd would keep ``x`` for
    the gradient in c: this keeps the product instead, which attention keeps anyway: ``tau conj(x) g = conj(tau c x) g /
    conj(c)``."""

    @staticmethod
    def forward(ctx, x, coefficients, temperature, conjugate):
        product = _complex(x) * _conjugate(torch.view_as_complex(coefficients), conjugate)
        product = _real(_temper_(product, temperature)).to(x.dtype)
        ctx.save_for_backward(coefficients, temperature, product if any(ctx.needs_input_grad[1:]) else None)
        ctx.conjugate = conjugate
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        coefficients, temperature, product = ctx.saved_tensors
        to_coefficients = to_temperature = None
        turn = _conjugate(torch.view_as_complex(coefficients), ctx.conjugate)
        conj = _complex(grad).conj_physical()
        if product is not None:
            to_log = _complex(product) * conj  # conjugate of the gradient in log c; its real part is that in log tau
            if ctx.needs_input_grad[2]:
                to_temperature = to_log.sum(-1, keepdim=True).real.sum_to_size(temperature.shape) / temperature
            if ctx.needs_input_grad[1]:
                # A coefficient that has vanished gives none: what reaches the support shrinks with it.
                square = turn.real.square().addcmul_(turn.imag, turn.imag)
                to_turn = to_log.sum_to_size(turn.shape).conj_physical_().mul_(turn)
                to_coefficients = torch.view_as_real(_conjugate(to_turn, ctx.conjugate).resolve_conj())
                to_coefficients.div_(square.clamp_(min=torch.finfo(square.dtype).tiny)[..., None])
        to_x = _real(_temper_(conj.mul_(turn), temperature).conj_physical_()).to(grad.dtype)
        return to_x, to_coefficients, to_temperature, None


def _complex(x: Tensor) -> Tensor:
    """The pairs of ``x`` (..., head_dim), widened."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x if x.stride(-1) == 1 else x.contiguous()  # such as the expanded gradient of a sum
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _real(pairs: Tensor) -> Tensor:
    return torch.view_as_real(pairs).flatten(-2)


def _conjugate(pairs: Tensor, really: bool) -> Tensor:
    return pairs.conj() if really else pairs


def _temper_(pairs: Tensor, scale: Tensor | None) -> Tensor:
    if scale is not None:
        torch.view_as_real(pairs).mul_(scale[..., None])
    return pairs
