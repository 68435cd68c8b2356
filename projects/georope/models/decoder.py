"""The PETR decoder: self-attention among queries, cross-attention to all image tokens, FFN; norms after each.

StreamPETR's decoder has further keys in self-attention: the memory entries that are not queries.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from mmcv.cnn.bricks.transformer import FFN
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from georope.rope import RotaryAttention, Rotation, Transform


class _Attention(nn.Module):
    """Attention under the name ``attn`` (that of released weights) and the dropout of its residual."""

    def __init__(self, embed_dims: int, num_heads: int, attention_dropout: float, dropout: float) -> None:
        super().__init__()
        self.attn = RotaryAttention(embed_dims, num_heads, attention_dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, *args, **kwargs) -> Tensor:
        return self.dropout(self.attn(*args, **kwargs))


@dataclass
class LayerInputs:
    """What all decoder layers share; see ``PETRDecoder.forward``. Keys are contents plus their additive positions.

    Attributes:
        query_pos: (B, Q, C).
        memory, memory_key: (B, L, C), image tokens.
        temporal, temporal_key: (B, M, C), or None.
    """

    query_pos: Tensor
    memory: Tensor
    memory_key: Tensor
    query_rotation: Rotation | None = None
    query_mask: Tensor | None = None
    query_padding: Tensor | None = None
    memory_padding: Tensor | None = None
    temporal: Tensor | None = None
    temporal_key: Tensor | None = None
    self_query_rotation: Rotation | None = None
    self_key_rotation: Rotation | None = None


class PETRDecoderLayer(nn.Module):
    """One layer; the arguments are those of ``PETRDecoder``.

    Attention weights have dropout in self-attention only: the published results were trained without it in
    cross-attention (a known bug of the reference), and we keep that. All residuals and the FFN have dropout.
    """

    def __init__(self, embed_dims: int, num_heads: int, feedforward_channels: int, dropout: float) -> None:
        super().__init__()
        self.attentions = nn.ModuleList((_Attention(embed_dims, num_heads, dropout, dropout),
                                         _Attention(embed_dims, num_heads, 0.0, dropout)))
        self.ffns = nn.ModuleList((FFN(embed_dims, feedforward_channels, ffn_drop=dropout), ))
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(3))

    def forward(self, query: Tensor, key_rotation: Rotation | Transform | None, inputs: LayerInputs) -> Tensor:
        """One layer.

        Args:
            query: (B, Q, C) content of the queries.
            key_rotation: of the image tokens in this layer.
            inputs: what all layers share.

        Returns:
            (B, Q, C).
        """
        self_attention, cross_attention = self.attentions
        positioned = query + inputs.query_pos
        self_key, self_value = positioned, query
        if inputs.temporal is not None and inputs.temporal_key is not None:
            self_key = torch.cat((self_key, inputs.temporal_key), dim=1)
            self_value = torch.cat((query, inputs.temporal), dim=1)
        query = self.norms[0](query + self_attention(
            positioned, self_key, self_value, inputs.self_query_rotation, inputs.self_key_rotation, inputs.query_mask,
            inputs.query_padding))
        query = self.norms[1](query + cross_attention(
            query + inputs.query_pos, inputs.memory_key, inputs.memory, inputs.query_rotation, key_rotation,
            key_padding_mask=inputs.memory_padding))
        return self.norms[2](self.ffns[0](query))


class PETRDecoder(nn.Module):
    """Decoder layers with one shared norm on what leaves each of them; the un-normed output feeds the next layer.

    Args:
        embed_dims: channels.
        num_layers: layers.
        num_heads: attention heads.
        feedforward_channels: hidden channels of the FFN.
        dropout: of self-attention weights, residuals and FFN.
        with_cp: recompute the layers in the backward pass instead of keeping their activations.
        positional_bias: c > 0 starts the biases of cross-attention so that they add the kernel
            ``c^2 / sqrt(head_dim) * sum_w cos(w . (x_key - x_query))`` of a rotary encoding to its first logits:
            queries look around their own position before any content is learnt (our choice). The biases are trained
            on from there.
    """

    def __init__(self, embed_dims: int = 256, num_layers: int = 6, num_heads: int = 8,
                 feedforward_channels: int = 2048, dropout: float = 0.1, with_cp: bool = False,
                 positional_bias: float = 0.0) -> None:
        super().__init__()
        self.positional_bias = positional_bias
        self.num_heads = num_heads
        self.with_cp = with_cp
        self.layers = nn.ModuleList(PETRDecoderLayer(embed_dims, num_heads, feedforward_channels, dropout)
                                    for _ in range(num_layers))
        self.post_norm = nn.LayerNorm(embed_dims)

    def init_weights(self) -> None:
        """Xavier-uniform weights and zero biases, as DETR, and the ``positional_bias``."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, RotaryAttention):
                nn.init.xavier_uniform_(module.in_proj_weight)
                nn.init.zeros_(module.in_proj_bias)
        for layer in self.layers:
            query_bias, key_bias, _ = layer.get_parameter('attentions.1.attn.in_proj_bias').data.chunk(3)
            query_bias[::2] = key_bias[::2] = self.positional_bias  # real parts of the pairs

    def forward(self, query: Tensor, query_pos: Tensor, memory: Tensor, memory_pos: Tensor | None,
                query_rotation: Rotation | None, key_rotations: Sequence[Rotation | Transform | None],
                query_mask: Tensor | None = None, query_padding: Tensor | None = None,
                memory_padding: Tensor | None = None, temporal: Tensor | None = None,
                temporal_pos: Tensor | None = None, self_query_rotation: Rotation | None = None,
                self_key_rotation: Rotation | None = None,
                move: Callable[[Tensor], dict[str, Any]] | None = None) -> Tensor:
        """Decode.

        Args:
            query, query_pos: (B, Q, C) content and additive position of the queries.
            memory, memory_pos: (B, L, C) image tokens and their additive position, None for none.
            query_rotation: of the queries in cross-attention.
            key_rotations: of the image tokens, one for each layer.
            query_mask: bool (Q, Q + M), True where a query must not see a key of self-attention.
            query_padding: bool (B, Q + M), True for keys of self-attention that no query may see.
            memory_padding: bool (B, L), True for image tokens that no query may see.
            temporal, temporal_pos: (B, M, C) content and additive position of further keys of every self-attention,
                behind the queries; None for none (M = 0). No layer changes them.
            self_query_rotation: of the queries in self-attention.
            self_key_rotation: of the queries and of ``temporal`` behind them.
            move: maps the normed output (B, Q, C) of a layer to those of the three rotations of queries that change
                from the next layer on; None if all layers share them.

        Returns:
            (layers, B, Q, C), normed.
        """
        inputs = LayerInputs(
            query_pos, memory, _key(memory, memory_pos), query_rotation, query_mask, query_padding, memory_padding,
            temporal, None if temporal is None else _key(temporal, temporal_pos), self_query_rotation,
            self_key_rotation)
        outputs: list[Tensor] = []
        for layer, key_rotation in zip(self.layers, key_rotations):
            if move is not None and outputs:
                inputs = replace(inputs, **move(outputs[-1]))
            if self.with_cp and self.training:
                query = checkpoint(layer, query, key_rotation, inputs, use_reentrant=False)
            else:
                query = layer(query, key_rotation, inputs)
            outputs.append(self.post_norm(query))
        return torch.stack(outputs)


def _key(content: Tensor, position: Tensor | None) -> Tensor:
    return content if position is None else content + position
