"""The positions and uncertainties of queries in the rotations of each decoder layer."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor

from georope.rope import PositionEncoding, Rotation

from . import box_code

GREATEST_SIZE = 50.0  # metres; a network may predict any


@dataclass
class QueryPositions:
    """Of a frame's queries, in metres, LiDAR frame.

    Attributes:
        points: (B, Q, 3).
        temporal: (B, M, 3), of the memory's further keys of self-attention, or None.
        times: (B, Q + M), when all of them were seen, seconds from now; None for now.
        drift: (B, Q, 3), how far their objects have moved since they were seen, as predicted; None for nowhere.
    """

    points: Tensor
    temporal: Tensor | None = None
    times: Tensor | None = None
    drift: Tensor | None = None


class QueryRotations:
    """The rotations of a frame's queries, layer by layer (our choice; no paper has it).

    Args:
        encoding, self_encoding: those of cross- and self-attention.
        positions: of the queries as they enter the decoder.
        predict: box codes (B, Q, 10), see ``box_code``, of a layer's normed output (B, Q, C).
        moving: from the second layer on, the position of a query is the centre that the layer before predicts for it.
            Otherwise all layers use ``positions``.
        uncertain: ``dict(box=, drift=)``: in cross-attention a query is a Gaussian around its position, None for a
            point. From the second layer on it is as wide as the box that the layer before predicts, times ``box`` (1
            gives the variances of a uniform box). While a query has the position with which it entered, it is also as
            wide as its drift, times ``drift``.
    """

    def __init__(self, encoding: PositionEncoding, self_encoding: PositionEncoding, positions: QueryPositions,
                 predict: Callable[[Tensor], Tensor], moving: bool = False,
                 uncertain: Mapping[str, float] | None = None) -> None:
        self.encoding, self.self_encoding, self.positions, self.predict = encoding, self_encoding, positions, predict
        self.moving, self.uncertain = moving, uncertain

    @property
    def change(self) -> bool:
        """Whether layers have rotations of their own."""
        return self.moving or self.uncertain is not None

    def first(self) -> dict[str, Rotation | None]:
        """Rotations of the first layer, or of all: arguments of ``LayerInputs``."""
        points = self.positions.points
        return dict(query_rotation=self._cross(points, self._drift()), **self._self(points))

    def next(self, output: Tensor) -> dict[str, Rotation | None]:
        """The rotations that change after a layer with the normed ``output`` (B, Q, C), which gets no gradient."""
        codes = self.predict(output.detach()).detach()
        points, spreads = self.positions.points, self._drift()
        if self.moving:
            points, spreads = codes[..., box_code.CENTRE], []
        if self.uncertain is not None:
            spreads = [*spreads, *(self.uncertain['box'] * axis for axis in box_spreads(codes))]
        changed = dict(query_rotation=self._cross(points, spreads))
        return dict(changed, **self._self(points)) if self.moving else changed

    def _drift(self) -> list[Tensor]:
        if self.uncertain is None or self.positions.drift is None:
            return []
        return [self.uncertain['drift'] * self.positions.drift]

    def _cross(self, points: Tensor, spreads: list[Tensor]) -> Rotation | None:
        if not spreads:
            return self.encoding.rotate_queries(points)
        # check_encodings has made sure that it takes spreads; PositionEncoding has none.
        rotate: Callable[..., Rotation | None] = self.encoding.rotate_queries
        return rotate(points, spreads=torch.stack(spreads, dim=-2))

    def _self(self, points: Tensor) -> dict[str, Rotation | None]:
        """Of the queries, and of the keys: the queries and the memory's further keys behind them."""
        temporal, times = self.positions.temporal, self.positions.times
        own = keys = self.self_encoding.rotate_queries(points, None if times is None else times[:, :points.shape[1]])
        if temporal is not None:
            keys = self.self_encoding.rotate_queries(torch.cat((points, temporal), dim=1), times)
        return dict(self_query_rotation=own, self_key_rotation=keys)


def check_encodings(encoding: PositionEncoding, self_encoding: PositionEncoding, moving_queries: bool,
                    uncertain_queries: Mapping[str, float] | None) -> None:
    """Raise ValueError if the options of a head do not fit each other; see ``PETRHead``."""
    if encoding.codes_points and not encoding.codes_tokens:
        raise ValueError(f'encoding: {type(encoding).__name__} codes points alone; use it as self_encoding')
    if self_encoding.codes_tokens:
        raise ValueError(f'self_encoding: {type(self_encoding).__name__} codes image tokens; use '
                         'georope.RoPE3D or georope.BEVTimeRoPE')
    if uncertain_queries is not None and set(uncertain_queries) != {'box', 'drift'}:
        raise ValueError(f'uncertain_queries must be dict(box=, drift=), not {uncertain_queries}')
    if uncertain_queries is not None and 'spreads' not in signature(encoding.rotate_queries).parameters:
        raise ValueError(f'uncertain_queries: {type(encoding).__name__} takes no spreads of queries; use '
                         'URoPE, LearnedDepth, RayRoPE or WorldRoPE as encoding')
    if moving_queries and not (encoding.codes_points or self_encoding.codes_points):
        raise ValueError('moving_queries: no encoding of the head encodes the positions of queries')


def box_spreads(codes: Tensor) -> list[Tensor]:
    """Three standard deviations (..., 3) in metres, along the axes of the uniform boxes of codes (..., 10)."""
    length, width, height = (codes[..., box_code.LOG_SIZE].exp().clamp(max=GREATEST_SIZE) / 12 ** 0.5).unbind(-1)
    yaw = torch.atan2(codes[..., box_code.SIN], codes[..., box_code.COS])
    cos, sin, zero = yaw.cos(), yaw.sin(), torch.zeros_like(yaw)
    return [torch.stack(axis, dim=-1) for axis in (
        (length * cos, length * sin, zero), (-width * sin, width * cos, zero), (zero, zero, height))]
