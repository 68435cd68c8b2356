"""What a head hands to the decoder: image tokens and queries."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .token_encoder import LayerGeometry


@dataclass
class ImageTokens:
    """What queries attend to.

    Attributes:
        content: (B, L, C).
        position: (B, L, C), added to keys, or None.
        padding: bool (B, L), or None for none.
        frame: what the encoding prepared of their rays.
        geometry: of the layers of a ``TokenEncoder``.
        entered: (B, L, C) each, what entered these layers.
    """

    content: Tensor
    position: Tensor | None
    padding: Tensor | None
    frame: Any
    geometry: Sequence[LayerGeometry] = ()
    entered: Sequence[Tensor] = ()


@dataclass
class Queries:
    """What enters the decoder, see ``PETRDecoder.forward``.

    Attributes:
        content, position: (B, Q, C).
        reference: (B, Q, 3) reference points, fractions of ``pc_range``.
        mask: bool (Q, Q + M) or None.
        padding: bool (B, Q + M) or None.
        temporal, temporal_pos: (B, M, C), the memory's further keys, or None.
        temporal_points: (B, M, 3) where they are, metres, or None.
        times: (B, Q + M) when all of them were seen, seconds from now (the past is negative), None for now.
        points: (B, Q, 3) where rotations take the queries to be, metres; None for their reference points.
        drift: see ``query_rotations.QueryPositions``.
    """

    content: Tensor
    position: Tensor
    reference: Tensor
    mask: Tensor | None = None
    padding: Tensor | None = None
    temporal: Tensor | None = None
    temporal_pos: Tensor | None = None
    temporal_points: Tensor | None = None
    times: Tensor | None = None
    points: Tensor | None = None
    drift: Tensor | None = None
