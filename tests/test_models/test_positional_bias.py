"""The start of cross-attention: a kernel of positions."""
import math

import torch

from georope.models.decoder import PETRDecoder
from georope.rope import RoPE3D


def test_cross_attention_starts_as_the_kernel_of_the_encoding():
    torch.manual_seed(0)
    heads, dims, c = 2, 16, 1.5
    decoder = PETRDecoder(heads * dims, num_layers=1, num_heads=heads, feedforward_channels=8, positional_bias=c)
    decoder.init_weights()
    self_attention, attention = (block.attn for block in decoder.layers[0].attentions)
    assert not self_attention.in_proj_bias.any()
    with torch.no_grad():  # no content in the logits, values as they are
        attention.in_proj_weight.zero_()[-heads * dims:] = torch.eye(heads * dims)
        attention.out_proj.weight.copy_(torch.eye(heads * dims))

    encoding = RoPE3D(heads, dims, rotate_values=False)
    queries, keys, values = torch.randn(1, 3, 3) * 10, torch.randn(1, 5, 3) * 10, torch.randn(1, 5, heads * dims)
    out = attention(torch.randn(1, 3, heads * dims), torch.randn(1, 5, heads * dims), values,
                    encoding.rotate_queries(queries), encoding.rotate_queries(keys))

    apart = queries[:, :, None] - keys[:, None]  # (1, Q, L, 3)
    vectors = encoding.bands.vectors[0]          # (pairs, 3), the same for all heads
    kernel = c ** 2 / math.sqrt(dims) * (apart @ vectors.T).cos().sum(-1)
    torch.testing.assert_close(out, kernel.softmax(-1) @ values, rtol=1e-4, atol=1e-5)
