"""EVA-02's ViT: the published computation, the published names, layers."""
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from georope.models import EvaViT
from georope.models.conversion import convert

DIMS, DEPTH, HEADS, WINDOW, LARGE = 32, 3, 2, 3, 4


def build(**options):
    torch.manual_seed(0)
    return EvaViT(**(dict(embed_dim=DIMS, depth=DEPTH, num_heads=HEADS, window_size=WINDOW, global_window_size=LARGE,
                          drop_path_rate=0.) | options))


def published(prefix='backbone.net.', dims=DIMS, depth=DEPTH):
    """Random weights with the names and shapes of EVA-02's detectors: vit.py of its repository's det/, as StreamPETR's
    eva_vit.py has it too (MIT); pretrained on 14 x 14 patches and a class token."""
    hidden = int(dims * 4 * 2 / 3)
    shapes = {'pos_embed': (1, 14 * 14 + 1, dims), 'patch_embed.proj.weight': (dims, 3, 16, 16),
              'patch_embed.proj.bias': (dims, ), 'rope_win.freqs_cos': (9, 16), 'rope_glb.freqs_sin': (16, 16)}
    for i in range(depth):
        block = {'attn.q_bias': (dims, ), 'attn.v_bias': (dims, ), 'attn.proj.weight': (dims, dims),
                 'attn.proj.bias': (dims, ), 'mlp.w1.weight': (hidden, dims), 'mlp.w1.bias': (hidden, ),
                 'mlp.w2.weight': (hidden, dims), 'mlp.w2.bias': (hidden, ), 'mlp.w3.weight': (dims, hidden),
                 'mlp.w3.bias': (dims, ), 'attn.rope.freqs_cos': (9, 16)}
        block |= {f'attn.{name}_proj.weight': (dims, dims) for name in 'qkv'}
        for norm, width in (('norm1', dims), ('norm2', dims), ('mlp.ffn_ln', hidden)):
            block |= {f'{norm}.weight': (width, ), f'{norm}.bias': (width, )}
        shapes |= {f'blocks.{i}.{name}': shape for name, shape in block.items()}
    generator = torch.Generator().manual_seed(1)
    weights = {prefix + name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5
               for name, shape in shapes.items()}
    return weights | {'roi_heads.box.weight': torch.ones(1), 'backbone.simfp_4.0.weight': torch.ones(1)}


def rotated(x, size):
    """RoPE of EVA-02 on x (tokens, heads, 16), tokens of a square of ``size``: 16 positions over any window, the first
    half of the channels by rows, the second by columns, neighbours as pairs."""
    half = x.shape[-1] // 2
    frequencies = 10000 ** -(torch.arange(0, half, 2) / half)
    positions = torch.arange(size) / size * 16
    rows, columns = torch.meshgrid(positions, positions, indexing='ij')
    angles = torch.cat([place.flatten()[:, None] * frequencies for place in (rows, columns)], dim=1).double()
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)


def plain(weights, images):
    """The published forward pass, window by window, in float64."""
    w = {name.removeprefix('backbone.net.'): value.double() for name, value in weights.items()}
    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f'{name}.weight'], w[f'{name}.bias'], eps=1e-6)

    def linear(x, name):
        return F.linear(x, w[f'{name}.weight'], w[f'{name}.bias'])
    x = F.conv2d(images.double(), w['patch_embed.proj.weight'], w['patch_embed.proj.bias'], stride=16)
    position = w['pos_embed'][:, 1:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
    x = (x + F.interpolate(position, x.shape[2:], mode='bicubic')).permute(0, 2, 3, 1)
    for i in range(DEPTH):
        size, block = (LARGE if i == 2 else WINDOW), f'blocks.{i}.'
        out = torch.zeros_like(x)
        y = norm(x, block + 'norm1')
        for n in range(len(x)):
            for r in range(0, x.shape[1], size):
                for c in range(0, x.shape[2], size):
                    part = y[n, r:r + size, c:c + size]
                    tokens = torch.zeros(size, size, DIMS).double()
                    tokens[:part.shape[0], :part.shape[1]] = part
                    q, k, v = (F.linear(tokens.flatten(0, 1), w[f'{block}attn.{name}_proj.weight'],
                                        w.get(f'{block}attn.{name}_bias')).unflatten(1, (HEADS, -1)) for name in 'qkv')
                    scores = torch.einsum('qhd,khd->hqk', rotated(q, size), rotated(k, size))
                    scores = scores / math.sqrt(DIMS // HEADS)
                    attended = torch.einsum('hqk,khd->qhd', scores.softmax(-1), v).flatten(1)
                    attended = linear(attended, block + 'attn.proj').unflatten(0, (size, size))
                    out[n, r:r + size, c:c + size] = attended[:part.shape[0], :part.shape[1]]
        x = x + out
        y = norm(x, block + 'norm2')
        y = F.silu(linear(y, block + 'mlp.w1')) * linear(y, block + 'mlp.w2')
        x = x + linear(norm(y, block + 'mlp.ffn_ln'), block + 'mlp.w3')
    return x.permute(0, 3, 1, 2)


class Detector(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.img_backbone = build(**options)


@pytest.mark.parametrize('size', [(96, 192), (80, 112)], ids=str)
def test_published_weights_give_the_published_computation(size):
    """Whole windows, and padded ones, whose padding takes part in attention."""
    model = Detector().eval()
    model.load_state_dict(convert(published(), model).state_dict)
    images = torch.rand(2, 3, *size)
    out, = model.img_backbone(images)
    assert out.shape == (2, DIMS, size[0] // 16, size[1] // 16)
    torch.testing.assert_close(out.double(), plain(published(), images), rtol=1e-4, atol=1e-4)


def test_conversion_tells_every_tensor_and_agrees_with_timms():
    from timm.models.eva import checkpoint_filter_fn
    model = Detector()
    weights = published()
    result = convert(weights, model)
    assert set(result.state_dict) == set(model.state_dict()) and not result.missing
    assert set(result.left) == {name for name in weights if 'rope' in name or 'net.' not in name}
    assert len(result.matched) + len(result.converted) + len(result.left) == len(weights)
    own = {name.removeprefix('backbone.net.'): value for name, value in weights.items() if 'net.' in name}
    own['pos_embed'] = own['pos_embed'][:, 1:]
    expected = checkpoint_filter_fn(own, model.img_backbone.vit)
    assert set(expected) == {name.removeprefix('img_backbone.vit.') for name in result.state_dict}
    assert all(torch.equal(result.state_dict[f'img_backbone.vit.{name}'], value) for name, value in expected.items())
    remapped = convert(published('img_backbone.'), model).state_dict  # the script in StreamPETR's docs/ViT_Large.md
    assert all(torch.equal(remapped[name], value) for name, value in result.state_dict.items())


def test_conversion_refuses_another_size():
    with pytest.raises(ValueError, match=r'blocks.3.* has the shape .* no such tensor'):
        convert(published(depth=4), Detector())
    with pytest.raises(ValueError, match='the checkpoint lacks 19 tensors'):
        convert(published(depth=2), Detector())
    with pytest.raises(ValueError, match='of the same width and depth'):
        convert(published(), Detector(embed_dim=64))


def test_the_published_vit_l_has_the_published_shapes():
    """StreamPETR's img_backbone: 24 blocks of 1024, mlp of 2730; every third block has large windows."""
    with torch.device('meta'):
        model = Detector(embed_dim=1024, depth=24, num_heads=16, window_size=16, global_window_size=20)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    assert shapes['img_backbone.vit.blocks.23.mlp.fc2.weight'] == (1024, 2730)
    assert shapes['img_backbone.vit.pos_embed'] == (1, 196, 1024)
    assert [i for i, window in enumerate(model.img_backbone.windows) if window == 20] == list(range(2, 24, 3))
    assert 300e6 < sum(shape.numel() for shape in shapes.values()) < 306e6


def test_recomputing_changes_no_gradient_and_every_parameter_has_one():
    gradients = []
    for with_cp in (False, True):
        model = build(with_cp=with_cp, drop_path_rate=0.5).train()
        torch.manual_seed(1)
        model(torch.rand(2, 3, 64, 96))[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        assert all(gradient is not None for gradient in gradients[-1])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_frozen_blocks():
    model = build(frozen_stages=2).train()
    frozen = {name.rpartition('.')[0] if 'blocks' not in name else name.split('.')[2]
              for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {'vit', 'vit.patch_embed.proj', '0', '1'}
    assert [block.training for block in model.vit.blocks] == [False, False, True]
    model(torch.rand(1, 3, 64, 64))[0].sum().backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in model.parameters())
