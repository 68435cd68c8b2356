"""Image tokens that talk: self-attention among the tokens of all cameras before the decoder.

In WorldRoPE (arXiv 2610.16337) image tokens attend to each other, and what they have become tells the next layer where
they are; PETR never updates them. How it is done for PETR is our choice, see rope/README.md, 5.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmcv.cnn.bricks.transformer import FFN
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from georope.rope import PositionEncoding, Rays, RotaryAttention, Rotation


@dataclass
class LayerGeometry:
    """What cameras decide for a layer.

    Attributes:
        frame: what the layer's encoding prepared of the tokens' rays.
        position: (B, L, C), additive position of the tokens, or None.
    """

    frame: Any
    position: Tensor | None


class TokenEncoderLayer(nn.Module):
    """Self-attention among tokens and an FFN, a norm behind each. Training starts with tokens that stay what they are:
    both branches end in a layer of zero weights.

    Args:
        embed_dims: channels.
        encoding: of this layer; its predictor sees the tokens as they enter.
        feedforward_channels: hidden channels of the FFN.
        dropout: of attention weights, residuals and FFN.
        key_step: tokens attend to every ``key_step``-th one, in their order.
    """

    def __init__(self, embed_dims: int, encoding: PositionEncoding, feedforward_channels: int, dropout: float,
                 key_step: int) -> None:
        super().__init__()
        self.encoding, self.key_step = encoding, key_step
        self.attn = RotaryAttention(embed_dims, encoding.num_heads, dropout)
        self.dropout = nn.Dropout(dropout)
        self.ffn = FFN(embed_dims, feedforward_channels, ffn_drop=dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(2))

    def init_weights(self) -> None:
        """Xavier-uniform weights as in the decoder, zeros in the last layer of both branches."""
        nn.init.xavier_uniform_(self.attn.in_proj_weight)
        nn.init.zeros_(self.attn.in_proj_bias)
        first, last = (layer for layer in self.ffn.modules() if isinstance(layer, nn.Linear))
        nn.init.xavier_uniform_(first.weight)
        nn.init.zeros_(first.bias)
        for layer in (self.attn.out_proj, last):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, content: Tensor, position: Tensor | None, rotation: Rotation | None,
                padding: Tensor | None) -> Tensor:
        """Arguments as in ``TokenEncoder``; ``rotation`` is that of keys. Returns (B, L, C)."""
        positioned = content if position is None else content + position
        step = slice(None, None, self.key_step)
        content = self.norms[0](content + self.dropout(self.attn(
            positioned, positioned[:, step], content[:, step], rotation,
            None if rotation is None else rotation.every(self.key_step),
            key_padding_mask=None if padding is None else padding[:, step])))
        return self.norms[1](self.ffn(content))


class TokenEncoder(nn.Module):
    """Layers of self-attention among all image tokens of a frame, each token where its encoding puts it: the rotation
    of keys on both sides. Time grows with the square of the number of tokens, divided by ``key_step``.

    Args:
        embed_dims: channels.
        encodings: one for each layer.
        feedforward_channels, dropout, key_step: see ``TokenEncoderLayer``.
        with_cp: recompute the layers in the backward pass instead of keeping their activations.
    """

    def __init__(self, embed_dims: int, encodings: Sequence[PositionEncoding], feedforward_channels: int = 1024,
                 dropout: float = 0.1, key_step: int = 1, with_cp: bool = False) -> None:
        super().__init__()
        if not encodings or key_step < 1:
            raise ValueError(f'token_encoder needs num_layers and key_step of at least 1, not {len(encodings)} and '
                             f'{key_step}')
        if not all(encoding.between_tokens for encoding in encodings):
            raise ValueError(f'token_encoder: {type(encodings[0]).__name__} has no rotation for image tokens as '
                             'queries; use another encoding or no token_encoder')
        self.with_cp = with_cp
        self.layers = nn.ModuleList(TokenEncoderLayer(embed_dims, encoding, feedforward_channels, dropout, key_step)
                                    for encoding in encodings)

    def init_weights(self) -> None:
        layer: Any
        for layer in self.layers:
            layer.init_weights()

    def prepare(self, rays: Rays, metas: Sequence[dict], position: Tensor | None) -> list[LayerGeometry]:
        """What cameras decide for each layer. ``position`` (B, L, C) is what the head itself adds to all keys."""
        geometry = []
        layer: Any
        for layer in self.layers:
            own = layer.encoding.embed_keys(rays)
            if own is None or position is None:
                own = position if own is None else own
            else:
                own = position + own
            geometry.append(LayerGeometry(layer.encoding.prepare(rays, metas), own))
        return geometry

    def forward(self, content: Tensor, geometry: Sequence[LayerGeometry], padding: Tensor | None) -> list[Tensor]:
        """Encode.

        Args:
            content: (B, L, C), image tokens.
            geometry: of ``prepare``.
            padding: bool (B, L), True for tokens that no token may see; None for none.

        Returns:
            (B, L, C) each: what enters the first layer, and what leaves each.
        """
        contents = [content]
        layer: Any
        for layer, own in zip(self.layers, geometry):
            rotation = layer.encoding.rotate_keys(own.frame, contents[-1])
            inputs = contents[-1], own.position, rotation, padding
            contents.append(checkpoint(layer, *inputs, use_reentrant=False) if self.with_cp and self.training
                            else layer(*inputs))
        return contents

    def losses(self, geometry: Sequence[LayerGeometry], entered: Sequence[Tensor], points: Tensor,
               padding: Tensor | None) -> dict[str, Tensor]:
        """Those of the layers' encodings, see ``PositionEncoding.losses``, under ``encoder0.`` and so on.

        Args:
            geometry: of ``prepare``.
            entered: (B, L, C) each: what enters each layer.
        """
        losses: dict[str, Tensor] = {}
        layer: Any
        for i, (layer, own, content) in enumerate(zip(self.layers, geometry, entered)):
            terms = layer.encoding.losses(own.frame, content, points, padding)
            losses.update({f'encoder{i}.{name}': values for name, values in terms.items()})
        return losses
