"""Multi-head attention that takes rotations (rope/README.md, 5)."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .rotation import Rotation, Transform


class RotaryAttention(nn.Module):
    """Multi-head attention over ``scaled_dot_product_attention``; parameters are named as in ``nn.MultiheadAttention``.

    With rotations ``q~ = q e^{i w.x}``, ``k~ = c k tau``, ``v~ = c v`` and the output is turned back by the query:
    every key turns once, whatever the number of queries, so that any SDPA kernel serves. Image tokens as queries have
    the ``c`` and ``tau`` of keys: a pair of tokens whose places are independent turns by the mean ``c_k conj(c_q)`` of
    ``e^{i w.(x_k - x_q)}``.

    Args:
        embed_dims: channels of queries, keys, values and output.
        num_heads: heads.
        dropout: dropout of the attention weights in training.
    """

    def __init__(self, embed_dims: int = 256, num_heads: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(f'embed_dims {embed_dims} is not a multiple of num_heads {num_heads}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dims, embed_dims))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dims))
        self.out_proj = nn.Linear(embed_dims, embed_dims)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor,
                query_rotation: Rotation | None = None, key_rotation: Rotation | Transform | None = None,
                attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            query: (B, Q, C), additive positions included.
            key: (B, L, C), additive positions included.
            value: (B, L, C).
            query_rotation: rotation of the queries; of image tokens that of their keys. None for none.
            key_rotation: rotation of the keys and, if it says so, of the values; None for none.
            attn_mask: bool (Q, L) or (B, Q, L), True where a query must not see a key.
            key_padding_mask: bool (B, L), True for keys that nobody may see.

        Returns:
            (B, Q, C).
        """
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1))
                   for x, weight, bias in zip((query, key, value), weights, biases))
        rotate_values = False
        if query_rotation is not None:
            q = query_rotation.apply(q, tempered=True)
        if key_rotation is not None:
            k = key_rotation.apply(k, tempered=True)
            rotate_values = key_rotation.rotate_values
            if rotate_values:
                v = key_rotation.apply(v)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=_visible(attn_mask, key_padding_mask),
            dropout_p=self.dropout if self.training else 0.0).transpose(1, 2)
        if rotate_values and query_rotation is not None:
            out = query_rotation.undo(out)
        return self.out_proj(out.flatten(-2))


def _visible(attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
    """SDPA's mask, True where a key is seen: (B or 1, 1, Q or 1, L), or None."""
    visible = None
    if attn_mask is not None:
        visible = ~(attn_mask if attn_mask.dim() == 3 else attn_mask[None])[:, None]
    if key_padding_mask is not None:
        unpadded = ~key_padding_mask[:, None, None]
        visible = unpadded if visible is None else visible & unpadded
    return visible
