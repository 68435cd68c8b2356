from dataclasses import replace

import pytest
import torch
from cameras import rig, rigid
from torch import nn

from georope.rope import NoEncoding, RayRoPE, Rays, RotaryAttention, Rotation, URoPE, WorldRoPE

FEATURES = (3, 5)
TOKENS = 6 * 15
VARIANTS = {
    'axial': dict(), 'mixed': dict(bands='mixed'), 'keys only': dict(rotate_values=False),
    'channel-wise': dict(channel_wise=True), 'lid': dict(anchors=dict(spacing='lid', num=8, start=1.0, stop=60.0)),
    'one anchor': dict(anchors=[20.0])}


def setup(dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    attention = RotaryAttention(64, 8).to(dtype).eval()
    nn.init.normal_(attention.in_proj_weight, std=0.3)
    nn.init.normal_(attention.in_proj_bias)
    encoding = URoPE(8, 8, **options).to(dtype)
    query, tokens = torch.randn(2, 7, 64, dtype=dtype), torch.randn(2, TOKENS, 64, dtype=dtype)
    points = torch.rand(2, 7, 3, dtype=dtype) * torch.tensor([100.0, 100, 8]) - torch.tensor([50.0, 50, 5])
    return attention, encoding, query, tokens, points


def attend(attention, encoding, query, tokens, points, lidar2img):
    rays = Rays.from_lidar2img(lidar2img, FEATURES, 16)
    keys = encoding.rotate_keys(encoding.prepare(rays), tokens)
    return attention(query, tokens, tokens, encoding.rotate_queries(points), keys)


def explicit(attention, query, key, value, queries, keys, mask):
    """Attention written out with 2x2 rotation matrices and a softmax."""
    def rotate(x, rotation, sign=1):
        x1, x2 = x[..., 0::2], x[..., 1::2]
        cos, sin = rotation.cos, rotation.sin * sign
        return torch.stack((cos * x1 - sin * x2, sin * x1 + cos * x2), -1).flatten(-2)
    width = query.shape[-1]
    split = [nn.functional.linear(x, attention.in_proj_weight[i * width:(i + 1) * width],
                                  attention.in_proj_bias[i * width:(i + 1) * width])
             .unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for i, x in enumerate((query, key, value))]
    q, k, v = split
    q, k = rotate(q, queries), rotate(k, keys)
    if keys.temperature is not None:
        k = k * keys.temperature
    v = rotate(v, keys) if keys.rotate_values else v
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    out = logits.masked_fill(mask[:, None], float('-inf')).softmax(-1) @ v
    out = rotate(out, queries, -1) if keys.rotate_values else out
    return attention.out_proj(out.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('temperature', [None, 1.7])
def test_equals_explicit_softmax(variant, temperature):
    attention, encoding, query, tokens, points = setup(**VARIANTS[variant])
    keys = encoding.prepare(Rays.from_lidar2img(rig()[None].repeat(2, 1, 1, 1), FEATURES, 16))
    if temperature:
        keys = Rotation(keys.cos, keys.sin, torch.rand(2, 8, TOKENS, 1).double() * temperature, keys.rotate_values)
    queries = encoding.rotate_queries(points)
    blocked = torch.rand(2, 7, TOKENS) < 0.4
    padding = torch.rand(2, TOKENS) < 0.3
    out = attention(query, tokens, tokens.flip(1), queries, keys, blocked, padding)
    expected = explicit(attention, query, tokens, tokens.flip(1), queries, keys, blocked | padding[:, None])
    torch.testing.assert_close(out, expected)


def test_without_rotations_it_is_torchs_multihead_attention():
    attention, _, query, tokens, _ = setup()
    other = nn.MultiheadAttention(64, 8, batch_first=True).double()
    other.load_state_dict(attention.state_dict())
    mask = torch.rand(7, TOKENS) < 0.3
    padding = torch.rand(2, TOKENS) < 0.3
    expected = other(query, tokens, tokens, attn_mask=mask, key_padding_mask=padding)[0]
    torch.testing.assert_close(attention(query, tokens, tokens, None, None, mask, padding), expected)
    nothing = NoEncoding()
    frame = nothing.prepare(None)
    assert nothing.rotate_keys(frame, tokens) is None and nothing.rotate_queries(query) is None


@pytest.mark.parametrize('variant', VARIANTS)
def test_translation_of_the_frame_changes_nothing(variant):
    attention, encoding, query, tokens, points = setup(**VARIANTS[variant])
    lidar2img = rig()[None].repeat(2, 1, 1, 1)
    shift = torch.tensor([310.0, -42.0, 3.0]).double()
    moved = lidar2img @ rigid(torch.eye(3), -shift)
    out = attend(attention, encoding, query, tokens, points, lidar2img)
    torch.testing.assert_close(attend(attention, encoding, query, tokens, points + shift, moved), out)
    # the test can see a shift: only moving the points is noticed
    assert (attend(attention, encoding, query, tokens, points + shift, lidar2img) - out).abs().max() > 1e-3


def test_rotation_of_the_frame_is_not_an_invariance():
    attention, encoding, query, tokens, points = setup()
    lidar2img = rig()[None].repeat(2, 1, 1, 1)
    turn = rigid(torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), (0, 0, 0))
    turned = attend(attention, encoding, query, tokens, points @ turn[:3, :3].T, lidar2img @ turn.T)
    assert (turned - attend(attention, encoding, query, tokens, points, lidar2img)).abs().max() > 1e-3


@pytest.mark.parametrize('variant', VARIANTS)
def test_camera_order_changes_nothing(variant):
    attention, encoding, query, tokens, points = setup(**VARIANTS[variant])
    lidar2img = rig()[None].repeat(2, 1, 1, 1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = tokens.unflatten(1, (6, -1))[:, order].flatten(1, 2)
    torch.testing.assert_close(attend(attention, encoding, query, shuffled, points, lidar2img[:, order]),
                               attend(attention, encoding, query, tokens, points, lidar2img))


@pytest.mark.parametrize('variant', VARIANTS)
def test_key_phase_is_that_of_the_point_at_the_anchor(variant):
    """A token whose anchor is where the query is has exactly the query's rotation: 3D RoPE."""
    _, encoding, *_ = setup(**VARIANTS[variant])
    rays = Rays.from_lidar2img(rig()[None], FEATURES, 16)
    keys = encoding.prepare(rays)
    heads, pairs = keys.cos.shape[1], keys.cos.shape[3]
    depths = encoding.depths.expand(heads, pairs)
    points = rays.points(depths.flatten())[0].unflatten(1, (heads, pairs))  # (L, heads, pairs, 3)
    bands = encoding.bands.vectors.expand(heads, pairs, 3)
    phase = (points * bands).sum(-1).transpose(0, 1)
    torch.testing.assert_close(keys.cos[0], phase.cos())
    torch.testing.assert_close(keys.sin[0], phase.sin())


def test_rotation_is_undone_exactly_and_leaves_zero_bands_alone():
    rotation = Rotation.from_phase(torch.randn(2, 8, 9, 4).double() * torch.tensor([3.0, 100.0, 0.0, 1.0]))
    x = torch.randn(2, 9, 8, 8).double()
    turned = rotation.apply(x)
    torch.testing.assert_close(rotation.undo(turned), x)
    assert torch.equal(turned[..., 4:6], x[..., 4:6]) and not torch.equal(turned, x)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_the_product(dtype):
    rotation = Rotation.from_phase(torch.randn(2, 1, 9, 4) * 200)
    x = torch.randn(2, 9, 8, 8).to(dtype)
    assert torch.equal(rotation.apply(x), rotation.apply(x.float()).to(dtype))


@pytest.mark.parametrize('size', [1.0, 1e-12, 0.0])
def test_gradients_of_the_product_are_taken_from_itself(size):
    torch.manual_seed(0)
    c, x, grad = (torch.randn(2, 9, n, 8, dtype=torch.complex64) for n in (1, 4, 4))
    cos, sin, temperature = (size * c.real).transpose(1, 2), (size * c.imag).transpose(1, 2), torch.rand(2, 4, 1, 1) + 1
    leaves = [part.clone().requires_grad_() for part in (cos, sin, temperature)]
    real, grad_real = (torch.view_as_real(z).flatten(-2).requires_grad_() for z in (x, grad))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (kept.append(tensor.data_ptr()), tensor)[1],
                                                  lambda tensor: tensor):
        product = Rotation(*leaves).apply(real, tempered=True)
    assert product.data_ptr() in kept and real.data_ptr() not in kept
    found = torch.autograd.grad(product, [real, *leaves], grad_real, retain_graph=True)
    ones = torch.autograd.grad(product, [real, *leaves], torch.ones_like(product), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(product.sum(), [real, *leaves]), ones))
    expected = torch.autograd.grad(
        torch.view_as_real(torch.complex(leaves[0], leaves[1]).transpose(1, 2) * leaves[2].transpose(1, 2) * x), leaves,
        grad_real.unflatten(-1, (-1, 2))) if size else [torch.zeros_like(leaf) for leaf in leaves]
    for a, b in zip(found[1:], expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


def test_phases_are_bit_equal_under_autocast():
    _, encoding, _, tokens, points = setup(torch.float32)
    lidar2img = rig()[None].float()

    def both():
        keys = encoding.rotate_keys(encoding.prepare(Rays.from_lidar2img(lidar2img, FEATURES, 16)), tokens)
        queries = encoding.rotate_queries(points)
        return keys.cos, keys.sin, queries.cos, queries.sin
    plain = both()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = both()
        half = encoding.rotate_queries(points.bfloat16()).cos
    assert half.dtype == torch.float32
    for a, b in zip(plain, cast):
        assert a.dtype == b.dtype == torch.float32 and torch.equal(a, b)


def test_autocast_attention_stays_close_and_finite():
    attention, encoding, query, tokens, points = setup(torch.float32)
    lidar2img = rig()[None].repeat(2, 1, 1, 1).float()
    plain = attend(attention, encoding, query, tokens, points, lidar2img)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = attend(attention, encoding, query, tokens, points, lidar2img)
    assert cast.dtype == torch.bfloat16
    assert (cast - plain).abs().max() < 0.05 * plain.abs().max()


@pytest.mark.parametrize('variant', ['axial', 'mixed', 'keys only'])
def test_gradcheck(variant):
    torch.manual_seed(0)
    attention = RotaryAttention(16, 2).double()
    encoding = URoPE(2, 8, **{**VARIANTS[variant], 'anchors': [5, 20]}).double()
    keys = encoding.prepare(Rays.from_lidar2img(rig(2)[None], (1, 2), 16))
    query, key, value = (torch.randn(1, n, 16).double().requires_grad_() for n in (3, 4, 4))
    points = (torch.randn(1, 3, 3).double() * 5).requires_grad_()

    def run(query, key, value, points, *_):
        return attention(query, key, value, encoding.rotate_queries(points), keys)
    assert torch.autograd.gradcheck(run, (query, key, value, points, *attention.parameters()))


def test_batch_items_do_not_mix():
    attention, encoding, query, tokens, points = setup()
    lidar2img = torch.stack((rig(), rig().flip(0)))
    both = attend(attention, encoding, query, tokens, points, lidar2img)
    for i in range(2):
        alone = attend(attention, encoding, query[i:i + 1], tokens[i:i + 1], points[i:i + 1], lidar2img[i:i + 1])
        torch.testing.assert_close(both[i:i + 1], alone)


def test_dropout_only_in_training():
    torch.manual_seed(0)
    attention = RotaryAttention(64, 8, dropout=0.5)
    query, tokens = torch.randn(1, 7, 64), torch.randn(1, 20, 64)
    attention.eval()
    assert torch.equal(attention(query, tokens, tokens), attention(query, tokens, tokens))
    attention.train()
    assert not torch.equal(attention(query, tokens, tokens), attention(query, tokens, tokens))


def test_mismatching_widths_are_named():
    with pytest.raises(ValueError, match='head_dim'):
        Rotation.from_phase(torch.randn(1, 1, 9, 8)).apply(torch.randn(1, 9, 8, 32))
    with pytest.raises(ValueError, match='multiple'):
        RotaryAttention(250, 8)


TALKING = {'urope': (URoPE, dict()), 'worldrope': (WorldRoPE, dict(bands='mixed')),
           'keys only': (WorldRoPE, dict(rotate_values=False, temperature='token')), 'rayrope': (RayRoPE, dict())}
talking = pytest.mark.parametrize('cls,options', TALKING.values(), ids=TALKING)


def talk(cls, options, lidar2img, step=1):
    """Image tokens that attend to every ``step``-th one: attention, tokens, their rotation and the output."""
    attention, _, _, tokens, _ = setup()
    torch.manual_seed(1)
    encoding = cls(8, 8, num_layers=1, **options).double()
    for parameter in encoding.parameters():
        nn.init.normal_(parameter, std=0.1)
    rotation = encoding.rotate_keys(encoding.prepare(Rays.from_lidar2img(lidar2img, FEATURES, 16)), tokens)
    keys = tokens[:, ::step]
    return attention, tokens, rotation, attention(tokens, keys, keys, rotation, rotation.every(step))


@talking
@pytest.mark.parametrize('step', [1, 4])
def test_pairs_of_image_tokens_turn_by_the_mean_of_both(cls, options, step):
    """c_k conj(c_q), written out for each pair in complex numbers; in keys and in values."""
    lidar2img = rig()[None].repeat(2, 1, 1, 1)
    attention, tokens, rotation, out = talk(cls, options, lidar2img, step)
    q, k, v = (torch.view_as_complex(nn.functional.linear(tokens, weight, bias).unflatten(-1, (8, 4, 2)))
               for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)))
    c = torch.complex(rotation.cos, rotation.sin).transpose(1, 2).expand_as(q)
    tau = rotation.temperature
    tau = torch.ones(2, TOKENS, 8).double() if tau is None else tau[..., 0].transpose(1, 2).expand(2, TOKENS, 8)
    some = slice(None, None, step)
    mean = c[:, None, some] * c[:, :, None].conj()  # (B, L, K, heads, pairs)
    logits = (q[:, :, None].conj() * k[:, None, some] * mean).real.sum(-1) * tau[:, :, None] * tau[:, None, some]
    values = v[:, None, some] * (mean if rotation.rotate_values else 1)
    mixed = ((logits / 8 ** 0.5).softmax(2)[..., None] * values).sum(2)
    expected = attention.out_proj(torch.view_as_real(mixed).flatten(-3))
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def test_it_is_the_mean_over_independent_places():
    """Monte Carlo over the mixtures of two tokens."""
    encoding = WorldRoPE(8, 8, num_layers=1, bands='mixed').double()
    rays = Rays.from_lidar2img(rig()[None], FEATURES, 16).select(torch.tensor([[3, 22]]))
    features = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(0)).double()
    nn.init.normal_(encoding.predictors[0].weight, std=0.1)
    exact = replace(rays, patch_variance=0.0)
    rotation = encoding.rotate_keys(encoding.prepare(exact), features)
    c = torch.complex(rotation.cos, rotation.sin)[0].transpose(0, 1)  # (2, heads, pairs)
    where = encoding.support(exact, features)
    torch.manual_seed(0)
    number = 20000
    choice = torch.stack([torch.multinomial(weights, number, True) for weights in where.weights[0]])
    depths = where.depths[0].gather(1, choice) + where.spreads[0].gather(1, choice) * torch.randn(2, number).double()
    points = rays.origins[0, :, None] + depths[..., None] * rays.directions[0, :, None]
    phase = encoding.bands((points[1] - points[0])[None])[0]  # (n, heads, pairs)
    sampled = torch.complex(phase.cos(), phase.sin()).mean(0)
    assert (sampled - c[1] * c[0].conj()).abs().max() < 0.03 < 0.1 < (sampled - c[1] * c[0]).abs().max()


@talking
def test_talking_tokens_do_not_depend_on_where_the_frame_is(cls, options):
    moved = rig() @ torch.linalg.inv(rigid(torch.eye(3).double(), (7.0, -30.0, 2.0)))
    here, there = (talk(cls, options, matrices[None].repeat(2, 1, 1, 1))[-1] for matrices in (rig(), moved))
    torch.testing.assert_close(here, there, rtol=1e-8, atol=1e-8)
