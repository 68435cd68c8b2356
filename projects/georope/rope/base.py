"""The interface of a position encoding, and what an encoding tells pictures of its tokens."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from .rays import Rays
from .rotation import Rotation, Transform


@dataclass
class Support:
    """Where along their rays an encoding assumes tokens to be: M hypotheses for each.

    Attributes:
        depths: (B, L, M), metres along the optical axis.
        weights: (B, L, M), sum 1; None for equal ones.
        spreads: (B, L, M), uncertainty of the depths in metres, 0 for a sure depth; None for sure depths.
        uniform: spreads are half lengths of uniform intervals, else standard deviations of Gaussians.
        patch: the encoding also takes a token's position within its patch as uncertain.
    """

    depths: Tensor
    weights: Tensor | None = None
    spreads: Tensor | None = None
    uniform: bool = False
    patch: bool = False

    def __post_init__(self) -> None:
        if self.weights is None:
            self.weights = torch.full_like(self.depths, 1 / self.depths.shape[-1])
        if self.spreads is None:
            self.spreads = torch.zeros_like(self.depths)


class PositionEncoding(nn.Module):
    """Base of all encodings, and all that a head asks of them. It encodes nothing itself: subclasses override what they
    need. In a forward pass:

        frame = encoding.prepare(rays, metas)                         # once per frame: all that cameras decide
        position = encoding.embed_keys(rays)                          # additive position of the image tokens
        keys = encoding.rotate_keys(frame, features, layer)           # once per decoder layer
        queries = encoding.rotate_queries(points)

    and in training, ``encoding.losses(frame, features, points, padding)``. ``support`` serves pictures. Implementations
    compute with autocast off and in float32 at least: half precision turns a phase by a whole radian.

    Shapes: B samples, L image tokens in the order (camera, row, column), Q queries, C = num_heads * head_dim channels.

    Args:
        num_heads: attention heads.
        head_dim: channels of a head, two per rotary pair.
        num_layers: decoder layers, for encodings with parameters of each.

    Attributes:
        predicts: class attribute, whether ``support`` depends on features, and so on the layer.
        between_tokens: class attribute, whether what ``rotate_keys`` returns serves for image tokens as queries too, so
            that they may attend to each other.
        decisive: class attribute, names of the attributes (dotted for those of parts) that decide what the encoding
            computes, beside its parameters. A class lists its own, those of its bases count too. Weights of losses and
            starts of training are none. A checkpoint fits a model if they are equal; for a class with arguments of its
            own and no list, if the configs are.
    """

    predicts = False
    between_tokens = True
    decisive: tuple[str, ...] = ()

    def __init__(self, num_heads: int = 8, head_dim: int = 32, num_layers: int = 6) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.num_layers = num_heads, head_dim, num_layers

    def __init_subclass__(cls, **kwargs) -> None:
        """Encodings written before there were ``metas`` define ``prepare(self, rays)``; they work on."""
        super().__init_subclass__(**kwargs)
        own = vars(cls).get('prepare')
        if own is not None:
            parameters = signature(own).parameters.values()
            if len(parameters) < 3 and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
                old = wraps(own)(lambda self, rays, metas=None: own(self, rays))
                cls.prepare = old  # type: ignore[method-assign]  # of this subclass alone, for all its objects

    def prepare(self, rays: Rays, metas: Sequence[dict] | None = None) -> Any:
        """What cameras and pixels decide, once per frame for all layers.

        Args:
            rays: of the tokens. ``rays.cameras`` tells which camera a token belongs to, ``rays.img2lidar`` the cameras'
                inverse projections.
            metas: meta information of the B samples as the head gets it (``cam_names``, ``timestamp``, ...), for
                encodings that need more of cameras than their rays; None where a caller has none.

        Returns:
            Anything; it is handed to ``rotate_keys`` and ``losses`` as ``frame``.
        """
        return None

    def embed_keys(self, rays: Rays) -> Tensor | None:
        """The additive position (B, L, C) of tokens, added to keys and not to values; None for none."""
        return None

    def rotate_keys(self, frame: Any, features: Tensor, layer: int = 0) -> Rotation | Transform | None:
        """The rotation of keys (and, if it says so, of values) in a decoder layer; None for none. Here, ``frame``.

        Args:
            frame: from ``prepare``.
            features: (B, L, C), content of the tokens.
            layer: index of the decoder layer.
        """
        return frame

    def rotate_queries(self, points: Tensor, times: Tensor | None = None) -> Rotation | None:
        """The rotation of 3D points; None for none.

        Args:
            points: (B, Q, 3), metres, LiDAR frame.
            times: (B, Q), when they were seen, seconds from now (the past is negative); None for now.
        """
        return None

    def support(self, rays: Rays, features: Tensor, layer: int = 0) -> Support | None:
        """Where the encoding assumes tokens to be, for pictures; None for encodings without depths.

        Args:
            rays, features, layer: of the tokens, as for ``prepare`` and ``rotate_keys``.
        """
        return None

    def losses(self, frame: Any, features: Tensor, points: Tensor, padding: Tensor | None = None) -> dict[str, Tensor]:
        """Further losses of training, which the head adds to its own.

        Args:
            frame, features: as for ``rotate_keys``.
            points: (B, n, 3), centres of the annotated objects, metres, LiDAR frame; NaN behind those of a sample.
            padding: bool (B, L), True for tokens that no query may see; None for none.

        Returns:
            {name with ``loss`` in it: (terms,)}, weighted. The head averages the terms over those of all ranks, of
            which any may have none; the names must be the same on all ranks.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """{name: value} of all ``decisive`` attributes."""
        names = [name for cls in type(self).__mro__ for name in vars(cls).get('decisive', ())]
        return {name: attrgetter(name)(self) for name in names}

    @classmethod
    def declares_all(cls) -> bool:
        """Whether every class of it that takes arguments has a list of what is ``decisive``."""
        return all('decisive' in vars(base) for base in cls.__mro__[:cls.__mro__.index(PositionEncoding)]
                   if '__init__' in vars(base))

    @property
    def codes_tokens(self) -> bool:
        """Whether it encodes image tokens, which cross-attention needs."""
        return self._overrides('prepare', 'embed_keys', 'rotate_keys')

    @property
    def codes_points(self) -> bool:
        """Whether it encodes 3D points; if these alone, it is for self-attention."""
        return self._overrides('rotate_queries')

    @property
    def has_losses(self) -> bool:
        """Whether ``losses`` returns any; the head asks for them only then."""
        return self._overrides('losses')

    def _overrides(self, *names: str) -> bool:
        return any(getattr(type(self), name) is not getattr(PositionEncoding, name) for name in names)
