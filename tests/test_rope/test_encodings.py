"""What all encodings share."""
import math
from dataclasses import replace
from inspect import signature

import pytest
import torch
from cameras import augmentations, cameras, rig, rigid
from hypothesis import given, settings

from georope.rope import (
    GTA,
    BEVTimeRoPE,
    LearnedDepth,
    NoEncoding,
    Pluecker,
    PRoPE,
    RayRoPE,
    Rays,
    RoPE3D,
    RotaryAttention,
    URoPE,
    WorldRoPE,
)
from georope.rope.bands import Bands
from georope.rope.supports import PredictedDepth, PredictedMixture

FEATURES = (3, 5)
TOKENS = 6 * 15
ROTARY = {
    'urope': (URoPE, dict()), 'urope-mixed': (URoPE, dict(bands='mixed')), 'rayrope': (RayRoPE, dict()),
    'learned-depth': (LearnedDepth, dict()), 'worldrope': (WorldRoPE, dict()),
    'worldrope-mixed': (WorldRoPE, dict(bands='mixed', per_layer=False)),
    'worldrope-token': (WorldRoPE, dict(bands=dict(type='mixed', learnable=True), temperature='token')),
    'worldrope-box': (WorldRoPE, dict(temperature='learned', query_deviation=[1.0, 1.0, 0.5], rotate_values=False))}
PREDICTED = [name for name in ROTARY if name not in ('urope', 'urope-mixed')]
ALL = {**ROTARY, 'none': (NoEncoding, dict()), 'gta': (GTA, dict()), 'prope': (PRoPE, dict()),
       'pluecker': (Pluecker, dict())}


def build(name, dtype=torch.float64, live=True):
    """An encoding; ``live`` gives its predictors weights, so that features matter."""
    torch.manual_seed(0)
    cls, options = ALL[name]
    encoding = cls(8, 8, num_layers=2, **options).to(dtype)
    if live:
        for parameter in encoding.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return encoding


def inputs(dtype=torch.float64):
    torch.manual_seed(1)
    points = torch.rand(2, 7, 3, dtype=dtype) * torch.tensor([100.0, 100, 8]) - torch.tensor([50.0, 50, 5])
    return torch.randn(2, 7, 64, dtype=dtype), torch.randn(2, TOKENS, 64, dtype=dtype), points


def attend(encoding, query, tokens, points, lidar2img, layer=1):
    torch.manual_seed(2)
    attention = RotaryAttention(64, 8).to(query.dtype)
    rays = Rays.from_lidar2img(lidar2img, FEATURES, 16)
    position = encoding.embed_keys(rays)
    key = tokens if position is None else tokens + position
    keys = encoding.rotate_keys(encoding.prepare(rays), tokens, layer)
    return attention(query, key, tokens, encoding.rotate_queries(points), keys)


def both_samples():
    return rig()[None].repeat(2, 1, 1, 1)


@pytest.mark.parametrize('name', ROTARY)
def test_translation_of_the_frame_changes_no_rotary_encoding(name):
    encoding, (query, tokens, points) = build(name), inputs()
    shift = torch.tensor([310.0, -42.0, 3.0]).double()
    moved = both_samples() @ rigid(torch.eye(3), -shift)
    out = attend(encoding, query, tokens, points, both_samples())
    torch.testing.assert_close(attend(encoding, query, tokens, points + shift, moved), out)
    assert (attend(encoding, query, tokens, points + shift, both_samples()) - out).abs().max() > 1e-4

    def logits(points, lidar2img):
        keys = encoding.rotate_keys(encoding.prepare(Rays.from_lidar2img(lidar2img, FEATURES, 16)), tokens, 1)
        q, k = encoding.rotate_queries(points).apply(query.unflatten(-1, (8, 8))), tokens.unflatten(-1, (8, 8))
        return torch.einsum('bqhc,blhc->bhql', q, keys.apply(k, tempered=True))
    torch.testing.assert_close(logits(points + shift, moved), logits(points, both_samples()))


@pytest.mark.parametrize('rotate_values', [True, False])
@pytest.mark.parametrize('cls', [RoPE3D, BEVTimeRoPE])
def test_translation_changes_no_code_of_self_attention(cls, rotate_values):
    """In space, and of time for those that know it; a turn of the frame does change it."""
    encoding, (query, _, points) = cls(8, 32, rotate_values=rotate_values).double(), inputs()
    torch.manual_seed(2)
    attention, query, times = RotaryAttention(256, 8).double(), query.repeat(1, 1, 4), -torch.rand(2, 7).double()

    def attend(points, times):
        rotation = encoding.rotate_queries(points, times)
        return attention(query, query, query, rotation, rotation)
    out, shift = attend(points, times), torch.tensor([310.0, -42.0, 3.0]).double()
    torch.testing.assert_close(attend(points + shift, times - 1.3), out)
    turned = points[..., [1, 0, 2]] * torch.tensor([-1.0, 1, 1])
    assert (attend(turned, times) - out).abs().max() > 1e-3


@pytest.mark.parametrize('name', ['gta', 'prope', 'pluecker'])
def test_translation_changes_the_others(name):
    """Documents a limit: their queries have no position of their own."""
    encoding, (query, tokens, points) = build(name), inputs()
    moved = both_samples() @ rigid(torch.eye(3), (-3.0, 1.0, 0.5))
    out = attend(encoding, query, tokens, points, both_samples())
    assert (attend(encoding, query, tokens, points, moved) - out).abs().max() > 1e-3


@pytest.mark.parametrize('name', [name for name in ALL if name != 'none'])
def test_rotation_of_the_frame_changes_all(name):
    """Documents a limit: nothing between image tokens and 3D queries is invariant under a turn of the frame."""
    encoding, (query, tokens, points) = build(name), inputs()
    turn = rigid(torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), (0, 0, 0))
    turned = attend(encoding, query, tokens, points @ turn[:3, :3].T, both_samples() @ turn.T)
    assert (turned - attend(encoding, query, tokens, points, both_samples())).abs().max() > 1e-4


@pytest.mark.parametrize('name', [name for name in ALL if name != 'none'])
def test_scale_of_the_frame_changes_all(name):
    """Documents a limit: wavelengths and depths are metres."""
    encoding, (query, tokens, points) = build(name), inputs()
    scaled = attend(encoding, query, tokens, 1.3 * points, both_samples() @ rigid(torch.eye(3) / 1.3, (0, 0, 0)))
    assert (scaled - attend(encoding, query, tokens, points, both_samples())).abs().max() > 1e-3


@pytest.mark.parametrize('name', ROTARY)
def test_flipped_images_with_mirrored_tokens_change_nothing(name):
    """A flip makes the focal length negative."""
    encoding, (query, tokens, points) = build(name), inputs()
    flip = torch.eye(4).double()
    flip[0, 0], flip[0, 2] = -1, FEATURES[1] * 16
    mirrored = tokens.unflatten(1, (6, *FEATURES)).flip(3).flatten(1, 3)
    out = attend(encoding, query, tokens, points, both_samples())
    torch.testing.assert_close(attend(encoding, query, mirrored, points, flip @ both_samples()), out)
    assert (attend(encoding, query, mirrored, points, both_samples()) - out).abs().max() > 1e-4


@pytest.mark.parametrize('name', ALL)
def test_camera_order_and_other_samples_change_nothing(name):
    encoding, (query, tokens, points) = build(name), inputs()
    lidar2img = torch.stack((rig(), rig().flip(0)))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = tokens.unflatten(1, (6, -1))[:, order].flatten(1, 2)
    out = attend(encoding, query, tokens, points, lidar2img)
    torch.testing.assert_close(attend(encoding, query, shuffled, points, lidar2img[:, order]), out)
    alone = attend(encoding, query[1:], tokens[1:], points[1:], lidar2img[1:])
    torch.testing.assert_close(alone, out[1:])


@pytest.mark.parametrize('name', PREDICTED)
def test_training_starts_at_pure_geometry(name):
    """Step 0: whatever the features are."""
    encoding, (_, tokens, _) = build(name, live=False), inputs()
    frame = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    both = (tokens, 9 * tokens.flip(1))
    one, other = (encoding.rotate_keys(encoding.prepare(frame), features, 1) for features in both)
    assert torch.equal(one.coefficients, other.coefficients)
    assert one.temperature is None or torch.equal(one.temperature, other.temperature)
    live = build(name)
    one, other = (live.rotate_keys(live.prepare(frame), features, 1) for features in both)
    assert (one.coefficients - other.coefficients).abs().max() > 1e-3


@pytest.mark.parametrize('name', ALL)
def test_autocast_changes_no_coefficient(name):
    encoding, (_, tokens, points) = build(name, torch.float32), inputs(torch.float32)
    lidar2img = both_samples().float()

    def all_of_it():
        rays = Rays.from_lidar2img(lidar2img, FEATURES, 16)
        keys, queries = encoding.rotate_keys(encoding.prepare(rays), tokens, 1), encoding.rotate_queries(points)
        rotations = [getattr(keys, 'rotation', keys), queries]
        return [getattr(keys, 'matrices', None), getattr(keys, 'temperature', None), encoding.embed_keys(rays),
                *(part for rotation in rotations if rotation is not None for part in (rotation.cos, rotation.sin))]
    plain = all_of_it()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = all_of_it()
    assert name == 'none' or any(part is not None for part in plain)
    for a, b in zip(plain, cast):
        assert a is b is None or (a.dtype == b.dtype == torch.float32 and torch.equal(a, b))


@pytest.mark.parametrize('cls', [RoPE3D, BEVTimeRoPE])
def test_autocast_changes_no_code_of_self_attention(cls):
    encoding, points, times = cls(8, 32), inputs(torch.float32)[2], -torch.rand(2, 7)
    plain = encoding.rotate_queries(points, times)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = encoding.rotate_queries(points, times)
    assert cast.cos.dtype == torch.float32
    assert torch.equal(cast.cos, plain.cos) and torch.equal(cast.sin, plain.sin)


@pytest.mark.parametrize('name', ALL)
def test_half_precision_features_and_attention(name):
    encoding, (query, tokens, points) = build(name, torch.float32), inputs(torch.float32)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = attend(encoding, query, tokens.bfloat16(), points, both_samples().float())
    expected = attend(encoding, query, tokens.bfloat16().float(), points, both_samples().float())
    assert out.dtype == torch.bfloat16 and (out - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize('name', ROTARY)
def test_unrotated_pairs_are_left_alone(name):
    cls, options = ROTARY[name]
    torch.manual_seed(0)
    encoding = cls(8, 28, num_layers=2, **options).double()  # 14 pairs: some are left over
    zero = encoding.bands.vectors.norm(dim=-1) == 0  # (1 or heads, pairs)
    assert 0 < zero.sum() < zero.numel()
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    keys = encoding.rotate_keys(encoding.prepare(rays), torch.randn(2, TOKENS, 224).double())
    for rotation, length in ((keys, TOKENS), (encoding.rotate_queries(inputs()[2]), 7)):
        x = torch.randn(2, length, 8, 28).double()
        same = zero.expand(8, -1).repeat_interleave(2, -1)
        torch.testing.assert_close(rotation.apply(x)[..., same], x[..., same])
        assert not torch.allclose(rotation.apply(x)[..., ~same], x[..., ~same])


@pytest.mark.parametrize('cls', [RoPE3D, URoPE, LearnedDepth, RayRoPE, WorldRoPE])
def test_without_value_rotation_values_and_outputs_stay(cls):
    """Equal logits then weigh the values as they are; with it they do not."""
    _, tokens, points = inputs()
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    for rotate_values in (True, False):
        encoding = cls(8, 8, rotate_values=rotate_values).double()
        queries = encoding.rotate_queries(points)
        keys = encoding.rotate_queries(rays.points([9.0])[:, :, 0]) if cls is RoPE3D else encoding.rotate_keys(
            encoding.prepare(rays), tokens)
        assert queries.rotate_values == keys.rotate_values == rotate_values
        attention = RotaryAttention(64, 8).double()
        with torch.no_grad():
            attention.in_proj_weight[:128] = 0
            out = attention(points.new_zeros(2, 7, 64), tokens, tokens, queries, keys)
            mean = attention(points.new_zeros(2, 7, 64), tokens, tokens)
        assert torch.allclose(out, mean) != rotate_values


def test_predictors_are_one_per_layer_or_shared():
    tokens = inputs()[1]
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    each, shared = build('worldrope'), build('worldrope-mixed')
    assert len(each.predictors) == 2 and len(shared.predictors) == 1
    frame = each.prepare(rays)
    assert not torch.equal(each.rotate_keys(frame, tokens, 0).cos, each.rotate_keys(frame, tokens, 1).cos)
    frame = shared.prepare(rays)
    assert shared.rotate_keys(frame, tokens, 0) is shared.rotate_keys(frame, tokens, 1)
    assert shared.rotate_keys(shared.prepare(rays), tokens, 0) is not shared.rotate_keys(frame, tokens, 0)


def test_mixture_starts_at_the_anchors_and_stays_in_its_range():
    predictor = PredictedMixture(16, [5, 12, 25, 45])
    weights, depths, deviations = predictor(torch.randn(1, 3, 16))
    torch.testing.assert_close(weights, torch.full((1, 3, 4), 0.25))
    torch.testing.assert_close(depths, torch.tensor([5.0, 12, 25, 45]).expand(1, 3, 4))
    torch.testing.assert_close(deviations, 0.35 * depths)
    torch.nn.init.normal_(predictor.weight, std=10)
    weights, depths, deviations = predictor(torch.randn(1, 300, 16))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 300))
    assert 0.499 < depths.min() and depths.max() < 80.01 and (deviations < 0.501 * depths).all()
    predictor = PredictedMixture(16, [20], spread=(0.05, 0.1, 0.2))
    torch.testing.assert_close(predictor(torch.randn(1, 1, 16))[2], torch.full((1, 1, 1), 2.0))
    for logit, deviation in ((-60.0, 1.0), (60.0, 4.0)):
        predictor.bias.data[1] = logit
        torch.testing.assert_close(predictor(torch.randn(1, 1, 16))[2], torch.full((1, 1, 1), deviation))
    for anchors, depth_range in (([5, 90], (0.5, 80)), ([5, 20], (0, 80)), ([5, 20], (80, 0.5))):
        with pytest.raises(ValueError, match='depth_range'):
            PredictedMixture(16, anchors, depth_range)
    spaced = PredictedMixture(16, dict(spacing='linspace', num=4, start=5, stop=50))
    torch.testing.assert_close(spaced(torch.randn(1, 1, 16))[1][0, 0], torch.tensor([5.0, 20, 35, 50]))


@pytest.mark.parametrize('name', PREDICTED)
def test_depths_count_in_focal_lengths(name):
    """The same features through a lens of twice the focal length: twice as deep, which is where the same object would
    look the same. Without a reference focal length the lens does not matter."""
    torch.manual_seed(0)
    cls, options = ALL[name]
    zoomed = torch.diag(torch.tensor([2.0, 2, 1, 1])).double() @ both_samples()
    _, tokens, _ = inputs()
    for reference, factor in ((560.0, 2), (None, 1)):
        encoding = cls(8, 8, num_layers=2, reference_focal=reference, depth_range=(0.1, 400), **options).double()
        torch.nn.init.normal_(encoding.predictors[-1].weight, std=0.02)
        frames = [encoding.prepare(Rays.from_lidar2img(x, FEATURES, 16)) for x in (both_samples(), zoomed)]
        depths, twice = (encoding.predictors[-1](tokens, frame.zoom) for frame in frames)
        if not isinstance(depths, torch.Tensor):  # spreads are shares of the depth
            torch.testing.assert_close(twice[-1] if name == 'rayrope' else twice[2], factor * depths[-1])
            depths, twice = (x[-2] for x in (depths, twice))
        assert depths.std() > 0.3 and 0.1 < depths.min() and twice.max() < 400
        torch.testing.assert_close(twice, factor * depths)
        rotation = encoding.rotate_keys(frames[1], tokens, 1)
        assert torch.equal(rotation.cos, encoding._rotate(
            frames[1], encoding.predictors[-1](tokens, frames[1].zoom), tokens).cos)
    with pytest.raises(ValueError, match='reference_focal'):
        cls(8, 8, reference_focal=0.0)


def test_the_lens_changes_no_depth_in_metres_without_a_reference():
    """The ablation is what the encoding was before: zoom enters nowhere but in rays and patches."""
    encoding, rays = WorldRoPE(8, 8, num_layers=1, reference_focal=None), Rays.from_lidar2img(
        both_samples().float(), FEATURES, 16)
    frame, features = encoding.prepare(rays), torch.randn(2, TOKENS, 64)
    weights, depths, deviations = encoding.predictors[0](features)
    torch.testing.assert_close(depths, torch.tensor([5.0, 12, 25, 45]).expand_as(depths))
    assert torch.equal(encoding.rotate_keys(frame, features).coefficients, encoding._rotate(
        frame, (weights, depths, deviations), features).coefficients)


@pytest.mark.parametrize('name', PREDICTED)
def test_predictors_of_other_units_are_refused(name):
    """Those from before ``reference_focal`` came, which are as today's without one, and those of another one."""
    cls, options = ALL[name]
    new, other, old = (cls(8, 8, num_layers=2, reference_focal=focal, **options) for focal in (560, 300, None))
    before, with_focal = old.state_dict(), new.state_dict()
    assert 'reference_focal' not in before and with_focal['reference_focal'] == 560
    for encoding, state, message in (
            (new, before, r'in metres whatever the lens \(as all.* set reference_focal .* to None, and give'),
            (old, with_focal, '560 px of focal length, .* in metres whatever the lens.* set reference_focal .* 560$'),
            (other, with_focal, '560 px.* 300 px.* set reference_focal .* to 560$')):
        for strict in (True, False):
            with pytest.raises(RuntimeError, match='predictors: the checkpoint has learnt depths .*' + message):
                encoding.load_state_dict(state, strict=strict)
    new.half().float()
    for encoding, state in ((new, with_focal), (old, before)):
        encoding.load_state_dict(state)
    new.load_state_dict({}, strict=False)  # such as a plain PETR's


@pytest.mark.parametrize('truth,bound', [(20.0, 80.0), (1.0, 0.5)])
def test_a_hypothesis_outside_its_range_comes_back(truth, bound):
    """The gradient of ``clamp`` would leave it there for ever. What leads farther away is not followed."""
    torch.manual_seed(0)
    predictor = PredictedMixture(4, [10], spread=(0.2, 0.35, 0.5))
    outside = math.log(bound / 10) + (0.7 if bound > 10 else -0.7)
    predictor.bias.data[0] = outside
    features, depths = 0.1 * torch.randn(64, 4), torch.full((64, ), truth)
    torch.testing.assert_close(predictor(features)[1], torch.full((64, 1), bound))
    optimizer = torch.optim.AdamW(predictor.parameters(), lr=1e-2)
    for _ in range(600):
        optimizer.zero_grad()
        predictor.negative_log_likelihood(features, depths).mean().backward()
        optimizer.step()
    torch.testing.assert_close(predictor(features)[1], torch.full((64, 1), truth), rtol=0.1, atol=0)

    single = PredictedDepth(4, [10])
    single.bias.data[0] = outside
    for direction in (1, -1):
        single.zero_grad()
        (direction * single(features)).sum().backward()
        inward = (direction > 0) == (bound > 10)
        assert (single.bias.grad.abs() > 1).item() == inward and bool(single.weight.grad.any()) == inward


def test_inside_its_range_a_depth_has_its_own_gradient():
    predictor, features = PredictedDepth(4, [10, 40]).double(), torch.randn(7, 4).double()
    torch.nn.init.normal_(predictor.weight, std=0.1)
    zoom = (0.5 + torch.rand(7, 1)).double().requires_grad_()
    assert torch.autograd.gradcheck(predictor, (features.requires_grad_(), zoom))


def test_learnt_depths_of_head_groups():
    """Four depths for eight heads: each group turns as one encoding at its depth does."""
    torch.manual_seed(0)
    for bands in ('axial', 'mixed'):
        groups = LearnedDepth(8, 8, anchors=[5, 12, 25, 45], num_layers=1, bands=bands).double()
        torch.nn.init.normal_(groups.predictors[0].weight, std=0.1)
        rays, tokens = Rays.from_lidar2img(both_samples(), FEATURES, 16), inputs()[1]
        keys = groups.rotate_keys(groups.prepare(rays), tokens)
        for i, depth in enumerate((5, 12, 25, 45)):
            one = LearnedDepth(8, 8, anchors=[depth], num_layers=1, bands=bands).double()
            one.predictors[0].weight.data = groups.predictors[0].weight.data[i:i + 1]
            alone = one.rotate_keys(one.prepare(rays), tokens)
            torch.testing.assert_close(keys.cos[:, 2 * i:2 * i + 2], alone.cos[:, 2 * i:2 * i + 2].expand(
                -1, 2, -1, -1) if bands == 'mixed' else alone.cos.expand(-1, 2, -1, -1))


def test_likelihood_is_a_density_of_log_depth():
    predictor = PredictedMixture(4, [8, 25]).double()
    predictor.bias.data[2:] = torch.tensor([-2.0, -3.0, 0.7, -0.7])  # deviations of 7 and 3 %, other weights
    log_depths = torch.linspace(0, 5, 4001).double()
    density = (-predictor.negative_log_likelihood(torch.zeros(4001, 4).double(), log_depths.exp())).exp()
    assert torch.trapezoid(density, log_depths).item() == pytest.approx(1, abs=1e-6)
    assert torch.trapezoid(density * log_depths.exp(), log_depths).item() == pytest.approx(
        8 * torch.sigmoid(torch.tensor(1.4)).item() + 25 * torch.sigmoid(torch.tensor(-1.4)).item(), rel=1e-5)


def test_bands_learn_their_directions_only():
    bands = Bands(dict(type='mixed', learnable=True), 8, 28)
    before = bands.vectors.detach().clone()
    torch.testing.assert_close(before, Bands('mixed', 8, 28).vectors)
    bands(torch.randn(5, 3)).square().sum().backward()
    assert bands.directions.grad.isfinite().all()
    bands.directions.data -= 1e-3 * bands.directions.grad
    after = bands.vectors
    torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
    assert not torch.allclose(after, before) and (after[before.norm(dim=-1) == 0] == 0).all()


def test_points_turn_exactly_and_time_stands_for_height():
    points, times = inputs()[2], torch.rand(2, 7).double() * -2
    rope, timed = RoPE3D(8, 32).double(), BEVTimeRoPE(8, 32).double()
    phase = points @ rope.bands.vectors[0].T
    torch.testing.assert_close(rope.rotate_queries(points, times).cos[:, 0], phase.cos())
    now = timed.rotate_queries(points)
    raised = points + torch.tensor([0.0, 0, 5])
    assert torch.equal(timed.rotate_queries(raised).cos, now.cos)
    past = timed.rotate_queries(points, times)
    assert torch.equal(past.cos[..., :12], now.cos[..., :12]) and not torch.equal(past.cos[..., 12:], now.cos[..., 12:])
    period = 2 * torch.pi / timed.bands.vectors[0, 12:, 2]
    torch.testing.assert_close(period[[0, -1]], torch.tensor([1.0, 16.0]).double(), atol=1e-5, rtol=0)


@settings(max_examples=25, deadline=None)
@given(cameras, augmentations)
def test_prope_is_the_inverse_projection(lidar2img, augmentation):
    lidar2img = lidar2img @ torch.linalg.inv(augmentation)
    rays = Rays.from_lidar2img(lidar2img[None, None], FEATURES, 16)
    width, height = rays.image_size
    normalise = torch.tensor([[1 / width, 0, -0.5, 0], [0, 1 / height, -0.5, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).double()
    expected = torch.linalg.inv(normalise @ lidar2img)
    expected[:3, 3] /= 2.0
    matrices = PRoPE(8, 8).double().prepare(rays).matrices
    torch.testing.assert_close(matrices, expected.expand_as(matrices), atol=1e-8, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(cameras, augmentations)
def test_gta_is_the_pose_of_the_camera(lidar2img, augmentation):
    rays = Rays.from_lidar2img((lidar2img @ torch.linalg.inv(augmentation))[None, None], FEATURES, 16)
    matrices = GTA(8, 8).double().prepare(rays).matrices
    pose = matrices[0, 0]
    torch.testing.assert_close(matrices, pose.expand_as(matrices))
    torch.testing.assert_close(pose[:3, :3].T @ pose[:3, :3], torch.eye(3).double(), atol=1e-9, rtol=0)
    assert torch.linalg.det(pose[:3, :3]) > 0
    torch.testing.assert_close(2 * pose[:3, 3], rays.origins[0, 0])
    # In the camera's axes a ray goes ahead, and rows of the image lie along x, whatever the flip.
    inside = rays.directions[0] @ pose[:3, :3]
    assert (inside[:, 2] > 0).all()
    along_u, along_v = (rays.footprints[0, 0] @ pose[:3, :3])
    torch.testing.assert_close(along_u[1:], torch.zeros(2).double(), atol=1e-9, rtol=0)
    assert along_v[1] > 0


def test_plueckers_coordinates_are_those_of_the_line():
    """Neither where on the ray its origin is nor how long its direction is matters; another line does."""
    encoding, rays = build('pluecker'), Rays.from_lidar2img(both_samples(), FEATURES, 16)
    out = encoding.embed_keys(rays)
    moved = replace(rays, origins=rays.origins + 7 * rays.directions, directions=3 * rays.directions)
    torch.testing.assert_close(encoding.embed_keys(moved), out)
    beside = replace(rays, origins=rays.origins + torch.tensor([0.5, 0.4, 0.3]))
    assert (encoding.embed_keys(beside) - out).abs().amax(-1).min() > 1e-4


def test_plueckers_keys_may_turn_by_their_place_in_the_image():
    """By as much at the same pixel of any camera, and values and queries never."""
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    keys = Pluecker(8, 8, image_rope=(0.1, 2.0)).double().prepare(rays)
    position = rays.pixels / torch.tensor([80.0, 48.0])
    phase = 2 * math.pi * (position[..., None] / torch.tensor([0.1, 2.0]).double()).flatten(-2)
    torch.testing.assert_close(keys.cos[:, 0], phase.cos(), atol=1e-5, rtol=0)
    assert not keys.rotate_values and Pluecker(8, 8).prepare(rays) is None


def test_urope_beside_plueckers_embedding():
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    plain, both = URoPE(8, 8).double(), URoPE(8, 8, pluecker=True).double()
    absolute = build('pluecker')
    both.absolute.load_state_dict(absolute.state_dict())
    assert plain.embed_keys(rays) is None and torch.equal(both.embed_keys(rays), absolute.embed_keys(rays))
    assert torch.equal(both.prepare(rays).coefficients, plain.prepare(rays).coefficients)


def test_transform_is_matrices_on_half_of_the_channels():
    rays = Rays.from_lidar2img(both_samples(), FEATURES, 16)
    transform = GTA(8, 16).double().prepare(rays)
    # 2 pairs turn with u, 2 with v, at wavelengths of .1 and 2 widths or heights
    position = rays.pixels / torch.tensor([80.0, 48.0])
    phase = 2 * math.pi * (position[..., None] / torch.tensor([0.1, 2.0]).double()).flatten(-2)
    torch.testing.assert_close(transform.rotation.cos[:, 0], phase.cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(transform.rotation.sin[:, 0], phase.sin(), atol=1e-5, rtol=0)
    x = torch.randn(2, TOKENS, 8, 16).double()
    blocks = torch.einsum('blij,blhgj->blhgi', transform.matrices, x[..., :8].unflatten(-1, (2, 4)))
    torch.testing.assert_close(transform.apply(x)[..., :8], blocks.flatten(-2))
    torch.testing.assert_close(transform.apply(x)[..., 8:].norm(dim=-1), x[..., 8:].norm(dim=-1))


def test_tokens_that_see_a_point_know_its_depth():
    lidar2img = both_samples()
    rays = Rays.from_lidar2img(lidar2img, (16, 44), 16)
    points = torch.rand(2, 40, 3).double() * torch.tensor([80.0, 80, 4]) - torch.tensor([40.0, 40, 2])
    points[1, 30:] = torch.nan
    depths = rays.locate(points)
    u, v, depth, _ = torch.einsum('bnij,bmj->inbm', lidar2img, torch.nn.functional.pad(points, (0, 1), value=1.0))
    column, row = (u / depth / 16).floor(), (v / depth / 16).floor()
    inside = (depth > 0) & (column >= 0) & (column < 44) & (row >= 0) & (row < 16)
    expected = torch.full_like(depths, torch.inf)
    for n, b, m in inside.nonzero().tolist():
        expected[b, int(n * 16 * 44 + row[n, b, m] * 44 + column[n, b, m]), m] = depth[n, b, m]
    assert inside.sum() > 40
    torch.testing.assert_close(depths, expected)


def test_depth_loss_pulls_the_mixture_to_the_depth():
    torch.manual_seed(0)
    encoding = WorldRoPE(8, 8, num_layers=2, depth_loss_weight=1.0)
    rays = Rays.from_lidar2img(rig()[None].float(), (16, 44), 16)
    features = torch.randn(1, 6 * 16 * 44, 64)
    points = torch.tensor([[[0.0, 30.0, 0.0], [0.0, 40.0, 0.0], [20.0, 5.0, 0.0], [torch.nan] * 3]])
    frame = encoding.prepare(rays)
    first = encoding.depth_loss(frame, features, points)
    seen = rays.locate(points).amin(-1)
    assert len(first) == seen.isfinite().sum() > 1
    optimizer = torch.optim.Adam(encoding.parameters(), lr=0.005)
    for _ in range(200):
        optimizer.zero_grad()
        encoding.depth_loss(frame, features, points).mean().backward()
        optimizer.step()
    assert encoding.depth_loss(frame, features, points).mean() < first.mean() - 0.5
    for predictor in encoding.predictors:
        weights, depths, _ = predictor(features[seen.isfinite()], frame.zoom[seen.isfinite()])
        torch.testing.assert_close((weights * depths).sum(-1), seen[seen.isfinite()], rtol=0.2, atol=0)
    assert len(encoding.depth_loss(frame, features, points + 1000)) == 0
    assert len(encoding.depth_loss(frame, features, points, seen == seen.min())) == len(first) - 1


@pytest.mark.parametrize('make,message', [
    (lambda: WorldRoPE(temperature='hot'), 'hot'), (lambda: RayRoPE(anchors=[5, 12]), 'one depth'),
    (lambda: GTA(8, 12), 'multiple of 8'),
    (lambda: Pluecker(8, 6, image_rope=(0.1, 2.0)), 'multiple of 4'), (lambda: WorldRoPE(anchors=[90]), 'depth_range'),
    (lambda: LearnedDepth(anchors=[5, 12, 25]), 'divide 8 heads'),
    (lambda: RayRoPE(anchors=dict(spacing='log', num=4, start=5, stop=45)), 'one depth'),
    (lambda: WorldRoPE(query_deviation=[1.0, 1.0]), 'query_deviation'), (lambda: GTA(metres=0.0), 'metres'),
    (lambda: WorldRoPE(query_deviation=[1.0, 1.0, -1.0]), 'query_deviation'),
    (lambda: WorldRoPE(spread=(0.01, 0.5, 0.5)), 'spread'), (lambda: RayRoPE(spread=(0.0, 0.3, 0.5)), 'spread')])
def test_bad_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


PREDICTORS = dict(anchors=[7.0], depth_range=(0.4, 90.0), bands='mixed', rotate_values=False, per_layer=False,
                  reference_focal=300)
# Another value of every argument that decides what an encoding computes.
DECISIVE = {
    NoEncoding: {}, Pluecker: dict(image_rope=(0.1, 2.0)), RoPE3D: dict(bands='mixed', rotate_values=False),
    BEVTimeRoPE: dict(xy=(2.0, 100.0), time=(1.0, 9.0), rotate_values=True),
    URoPE: dict(anchors=[7.0], channel_wise=True, bands='mixed', rotate_values=False, pluecker=True),
    LearnedDepth: PREDICTORS, RayRoPE: dict(PREDICTORS, spread=(0.02, 0.35, 0.6)),
    WorldRoPE: dict(PREDICTORS, spread=(0.02, 0.35, 0.6), temperature='token', max_temperature=2.0,
                    query_deviation=[1.0, 1.0, 1.0]),
    GTA: dict(metres=1.0, wavelengths=(0.2, 2.0)), PRoPE: dict(metres=1.0, wavelengths=(0.2, 2.0))}
# Those that only training sees.
TRAINING = {WorldRoPE: dict(depth_loss_weight=0.5, spread=(0.01, 0.2, 0.5)), RayRoPE: dict(spread=(0.01, 0.2, 0.5))}


def arguments(cls) -> set[str]:
    names = set()
    for base in cls.__mro__:
        parameters = signature(base.__init__).parameters.values() if '__init__' in vars(base) else ()
        names |= {parameter.name for parameter in parameters
                  if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)}
        if parameters and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names - {'self', 'num_heads', 'head_dim', 'num_layers', 'dims'}


@pytest.mark.parametrize('cls', DECISIVE)
def test_weights_of_another_function_are_told_by_tensors_or_by_what_is_decisive(cls):
    def identity(**options):
        encoding = cls(8, 16, **options)
        return ({name: value.shape for name, value in encoding.state_dict().items()},
                {name: value.tolist() if isinstance(value, torch.Tensor) else value
                 for name, value in encoding.describe().items()})
    known = {*DECISIVE[cls], *TRAINING.get(cls, {})}
    assert known == arguments(cls) | (arguments(cls.predictor) if hasattr(cls, 'predictor') else set())
    assert cls.declares_all()
    for name, value in DECISIVE[cls].items():
        assert identity(**{name: value}) != identity(), name
    for name, value in TRAINING.get(cls, {}).items():
        assert identity(**{name: value}) == identity(), name
