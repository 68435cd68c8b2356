"""The closed form of WorldRoPE and RayRoPE against sampling, integrals, limits, and finite differences."""
import math
from dataclasses import replace

import pytest
import torch
from cameras import camera, rig

from georope.rope import LearnedDepth, RayRoPE, Rays, RotaryAttention, Rotation, URoPE, WorldRoPE
from georope.rope.bands import Bands
from georope.rope.rotation import expected_rotation

FEATURES = (16, 44)  # of 256 x 704 pixels


def chosen_rays(num, seed=0):
    """A few tokens of real size: 16 pixels of 256 x 704."""
    rays = Rays.from_lidar2img(rig()[None], FEATURES, 16)
    generator = torch.Generator().manual_seed(seed)
    return rays.select(torch.randint(rays.origins.shape[1], (1, num), generator=generator))


def coefficients(encoding, rays, weights, depths, deviations, extent=True):
    frame = encoding.prepare(rays)
    patch = frame.patch if extent else torch.zeros_like(frame.patch)
    mean = torch.view_as_complex(expected_rotation(weights, depths, deviations, frame.origin, frame.along, patch))
    return encoding.bands.spread(mean).transpose(1, 2)  # (B, 1 or heads, L, pairs)


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_sampling_depth_and_pixel_gives_the_closed_form(bands):
    """Where the patch spans less than a radian of a band even at the farthest mean, to .02. The rest is damped so far
    that these mixtures agree to .05 in all bands; what bounds it is below."""
    torch.manual_seed(0)
    tokens, samples = 6, 60000
    rays, encoding = chosen_rays(tokens), WorldRoPE(2, 32, bands=bands).double()
    weights = torch.rand(1, tokens, 4).double().softmax(-1)
    depths = torch.tensor([5.0, 12, 25, 45]).double() * (0.8 + 0.4 * torch.rand(1, tokens, 4).double())
    deviations = depths * torch.linspace(0.02, 0.35, tokens)[:, None]
    closed = coefficients(encoding, rays, weights, depths, deviations)
    spans = (12 * encoding.bands.spread(encoding.prepare(rays).patch)[0]).sqrt()
    spans = spans * depths[0].amax(-1)[:, None, None]  # (L, heads, pairs), rad
    for token in range(tokens):
        m = torch.multinomial(weights[0, token], samples, replacement=True)
        depth = depths[0, token, m] + deviations[0, token, m] * torch.randn(samples).double()
        pixel = (torch.rand(samples, 2).double() - 0.5) * 16
        direction = rays.directions[0, token] + pixel @ rays.footprints[0, token]
        phase = encoding.bands(rays.origins[0, token] + depth[:, None] * direction)
        sampled = torch.polar(torch.ones_like(phase), phase).mean(0)
        error = (sampled - closed[0, :, token]).abs()
        fine = spans[token] < 1
        assert error[fine].max() < 0.02 and error.max() < 0.05 and 0.3 < fine.float().mean() < 0.9
    assert closed.abs().min() < 0.3 < 0.9 < closed.abs().max()  # damped and undamped bands occur


def integrated(depth, deviation, along, side_u, side_v):
    """The expected rotation of one hypothesis over depth and a square patch, numerically: complex, for ``w.o = 0``.

    ``along`` is ``w.r``; ``side_u``, ``side_v`` are what the sides of a patch turn a band by at depth 1, rad.
    """
    normal = torch.linspace(-8, 8, 1201).double()
    density = (-normal ** 2 / 2).exp()
    depths = (depth + deviation * normal).expand(*along.shape, 1201)
    along, side_u, side_v = (x[..., None] for x in (along, side_u, side_v))
    size = density / density.sum() * (depths * side_u / 2 / math.pi).sinc() * (depths * side_v / 2 / math.pi).sinc()
    return torch.complex(size * (depths * along).cos(), size * (depths * along).sin()).sum(-1)


def test_how_far_the_closed_form_is_off():
    """The bounds of the README for one hypothesis. A patch is a square that grows with depth; the closed form takes
    depth and position in the patch as independent Gaussians."""
    turns = torch.arange(0, 4.5, 0.5).double()  # rad that a deviation of depth turns the band by

    def worst(sigma, *spans):
        along, side = turns[None] / (sigma or 1.0), torch.tensor(spans).double()[:, None]
        along, side = (x.expand(len(spans), len(turns)) for x in (along, side))
        one = torch.ones(1, 1, 1).double()
        closed = torch.view_as_complex(expected_rotation(one, one, sigma * one, *(
            x.reshape(1, 1, -1) for x in (torch.zeros_like(along), along, side ** 2 / 12))))
        exact = integrated(1.0, sigma, along, side, torch.zeros_like(side))
        return (closed.reshape(along.shape) - exact).abs().max()
    assert worst(0.0, 1.0) < 0.001 and worst(0.0, 2.9) < 0.02 < worst(0.0, 3.0)
    assert worst(0.35, 0.5, 1.0) < 0.02 < worst(0.5, 0.5, 1.0) < 0.026

    # Small turns: the variance of the phase is exact, that of uncertainty and patch together included.
    side, along = torch.tensor([[0.01]]).double(), torch.tensor([[0.003]]).double()
    one = torch.ones(1, 1, 1).double()
    closed = torch.view_as_complex(expected_rotation(
        one, one, 0.5 * one, *(x[None] for x in (0 * side, along, side ** 2 / 12))))
    exact = integrated(1.0, 0.5, along, side, 0 * side)
    assert closed.abs().log().item() == pytest.approx(exact.abs().log().item(), rel=1e-3)
    for sigma in (0.0, 0.1, 0.35, 0.5):
        assert 0.15 < worst(sigma, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 16.0) < 0.27


def test_how_far_it_is_off_as_training_starts():
    """Of 256x704 pixels, in the README: .07 in the shortest wave (1.5 m, height), .025 in the next ones (3 m)."""
    rays, encoding = chosen_rays(40), WorldRoPE(8, 32, num_layers=1, reference_focal=None).double()
    frame, wave = encoding.prepare(rays), 2 * math.pi / encoding.bands.vectors[0].norm(dim=-1)
    closed = encoding.rotate_keys(frame, torch.zeros(1, 40, 256).double())
    side_u, side_v = (16 * encoding.bands.distinct(rays.footprints)).unbind(2)
    exact = sum(integrated(depth, 0.35 * depth, frame.along, side_u, side_v) * torch.polar(
        torch.ones_like(frame.origin), frame.origin) for depth in (5.0, 12.0, 25.0, 45.0)) / 4
    exact = encoding.bands.spread(exact).transpose(1, 2)
    error = (torch.complex(closed.cos, closed.sin) - exact).abs().amax((0, 1, 2))
    assert 0.04 < error[wave < 2].max() < 0.07
    assert error[(wave > 2) & (wave < 4)].max() < 0.025 and error[wave > 4].max() < 0.016


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_a_sure_hypothesis_without_extent_is_3d_rope(bands):
    rays, encoding = chosen_rays(9), WorldRoPE(8, 32, bands=bands).double()
    depth = 3 + 50 * torch.rand(1, 9, 1).double()
    c = coefficients(encoding, rays, torch.ones_like(depth), depth, torch.zeros_like(depth), extent=False)
    rotation = encoding.rotate_queries(rays.origins + depth * rays.directions)
    torch.testing.assert_close(c, torch.complex(rotation.cos, rotation.sin))


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
@pytest.mark.parametrize('hypothesis', range(4))
def test_one_hot_weights_on_anchors_are_urope(hypothesis, bands):
    rays, anchors = chosen_rays(9), [5.0, 12.0, 25.0, 45.0]
    depths = torch.tensor(anchors).double().expand(1, 9, 4)
    weights = torch.zeros_like(depths)
    weights[..., hypothesis] = 1
    c = coefficients(WorldRoPE(8, 32, bands=bands).double(), rays, weights, depths, 0 * depths, extent=False)
    urope = URoPE(8, 32, anchors=[anchors[hypothesis]], bands=bands).double().prepare(rays)
    torch.testing.assert_close(c, torch.complex(urope.cos, urope.sin))


def test_endless_doubt_leaves_bands_across_the_ray():
    rays, encoding = chosen_rays(9), WorldRoPE(8, 32, bands='mixed').double()
    depth = torch.full((1, 9, 1), 20.0).double()
    c = coefficients(encoding, rays, torch.ones_like(depth), depth, depth * 1e4, extent=False)
    along = encoding.bands(rays.directions).transpose(1, 2)
    assert c[along.abs() > 1e-3].abs().max() < 1e-3
    c = coefficients(encoding, Rays(rays.origins, 0 * rays.directions, rays.footprints, rays.pixels, 0, (1, 1)),
                     torch.ones_like(depth), depth, depth * 1e4)
    torch.testing.assert_close(c.abs(), torch.ones_like(c.abs()))


def test_interval_is_the_integral_over_its_depths():
    torch.manual_seed(0)
    rays, encoding = chosen_rays(7), RayRoPE(8, 32, bands='mixed').double()
    torch.nn.init.normal_(encoding.predictors[2].weight, std=0.1)
    features = torch.randn(1, 7, 256).double()
    frame = encoding.prepare(rays)
    keys = encoding.rotate_keys(frame, features, layer=2)
    middle, half = encoding.predictors[2](features, frame.zoom)
    assert half.std() > 0.1 and (half > 0).all()
    steps = 4000
    depths = middle + half * ((torch.arange(steps) + 0.5) / steps * 2 - 1)  # (1, L, steps)
    phase = encoding.bands(rays.origins[..., None, :] + depths[..., None] * rays.directions[..., None, :])
    integral = torch.polar(torch.ones_like(phase), phase).mean(2).transpose(1, 2)
    torch.testing.assert_close(torch.complex(keys.cos, keys.sin), integral, atol=1e-4, rtol=0)
    assert integral.abs().min() < 0.05


def test_only_mixed_bands_see_the_off_diagonal_of_the_covariance():
    """Two rays, mirrored in an axis, have the same variances along the axes."""
    lidar2img = torch.stack([camera(yaw, fx=560, cx=8, cy=8) for yaw in (math.pi / 4, -math.pi / 4)])[None]
    rays = Rays.from_lidar2img(lidar2img, (1, 1), 16)  # one token each, in the middle of the image
    torch.testing.assert_close(rays.directions[0, 0], rays.directions[0, 1] * torch.tensor([-1.0, 1, 1]))
    depths = torch.full((1, 2, 1), 20.0).double()
    for bands, difference in (('axial', 0.0), ('mixed', 0.5)):
        size = coefficients(WorldRoPE(8, 32, bands=bands).double(), rays, torch.ones_like(depths), depths,
                            torch.full_like(depths, 4.0)).abs()[0]
        assert (size[:, 0] - size[:, 1]).abs().max() == pytest.approx(0, abs=1e-9) if not difference else (
            (size[:, 0] - size[:, 1]).abs().max() > difference)


def test_bearing_survives_doubt_under_mixed_bands():
    """Why bands may be mixed (rope/README.md, 2): a ray at 45 degrees, 20 m away, uncertain by 4 m."""
    rays = Rays.from_lidar2img(camera(math.pi / 4, fx=560, cx=8, cy=8)[None, None], (1, 1), 16)
    depths = torch.full((1, 1, 1), 20.0).double()

    def size(direction, wavelength):
        band = 2 * math.pi / wavelength * torch.tensor(direction).double()
        patch = rays.patch_variance * (rays.footprints @ band).square().sum(-1)
        along, zero = rays.directions @ band, torch.zeros(1, 1, 1).double()
        c = torch.view_as_complex(expected_rotation(torch.ones_like(depths), depths, torch.full_like(depths, 4.0), zero,
                                         along[..., None], patch[..., None]))
        return c.abs().item()
    across = (math.sqrt(0.5), math.sqrt(0.5), 0.0)  # the ray points to (-1, 1)
    assert size(across, 2.0) > 0.86
    for axis in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)):
        assert all(size(axis, wavelength) < 0.45 for wavelength in (2.0, 5.0, 10.0, 14.0))
        assert size(axis, 5.0) < 0.01

    # Of the bands in the plane under 14 m that there are, axial ones all vanish, and of mixed ones some stay whole.
    for bands, kept in (('axial', (0, 0.05)), ('mixed', (0.99, 1))):
        encoding = WorldRoPE(8, 32, bands=bands).double()
        vectors = encoding.bands.vectors
        short = (vectors[..., 2] == 0) & (vectors.norm(dim=-1) > 2 * math.pi / 14)
        c = coefficients(encoding, rays, torch.ones_like(depths), depths, torch.full_like(depths, 4.0))[0, :, 0]
        assert kept[0] <= c[short].abs().max() <= kept[1]


@pytest.mark.parametrize('uncertainty', [1.0, 0.0])
def test_gradients_of_the_closed_form(uncertainty, monkeypatch):
    monkeypatch.setattr('georope.rope.rotation.CACHED', 16)  # two tokens at a time
    torch.manual_seed(0)
    shape = (2, 3, 2)
    inputs = (torch.rand(shape), 10 * torch.rand(shape), uncertainty * torch.rand(shape), torch.randn(2, 3, 8),
              0.3 * torch.randn(2, 3, 8), 0.02 * torch.rand(2, 3, 8))
    assert torch.autograd.gradcheck(expected_rotation, [x.double().requires_grad_() for x in inputs])


@pytest.mark.parametrize('cls,options', [
    (WorldRoPE, dict(temperature='token', bands=dict(type='mixed', learnable=True))),
    (WorldRoPE, dict(temperature='learned')), (WorldRoPE, dict(temperature='none', rotate_values=False)),
    (WorldRoPE, dict(temperature='key_rms', query_deviation=[1.0, 0.5, 0.2])),
    (RayRoPE, dict(anchors=[15], bands=dict(type='mixed', learnable=True))),
    (LearnedDepth, dict(anchors=[15], rotate_values=False))])
def test_gradients_through_attention(cls, options):
    torch.manual_seed(0)
    attention = RotaryAttention(16, 2).double()
    encoding = cls(2, 8, num_layers=1, **{'anchors': [5, 20], **options}).double()
    for parameter in encoding.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    rays = Rays.from_lidar2img(rig(2)[None], (1, 2), 16)
    query, features, points = (torch.randn(1, n, c).double().requires_grad_() for n, c in ((3, 16), (4, 16), (3, 3)))

    def run(query, features, points, *_):
        keys = encoding.rotate_keys(encoding.prepare(rays), features)
        return attention(query, features, features, encoding.rotate_queries(points), keys)
    assert torch.autograd.gradcheck(run, (query, features, points, *encoding.parameters()))


@pytest.mark.parametrize('cls,spread', [(WorldRoPE, -60.0), (WorldRoPE, 60.0), (RayRoPE, -60.0), (RayRoPE, 60.0)])
def test_gradients_stay_finite_without_doubt_and_far_away(cls, spread):
    rays = chosen_rays(9)
    far = Rays(rays.origins + 2000, rays.directions, rays.footprints, rays.pixels, rays.patch_variance, rays.image_size)
    encoding = cls(8, 32, anchors=[79.9], num_layers=1, bands=dict(type='mixed', learnable=True))
    encoding.predictors[0].bias.data[1] = spread
    features = torch.randn(1, 9, 256, requires_grad=True)
    torch.nn.init.normal_(encoding.predictors[0].weight, std=1.0)
    for some in (rays, far):
        keys = encoding.rotate_keys(encoding.prepare(some.to(torch.float32)), features)
        parts = [keys.cos, keys.sin] + ([keys.temperature] if keys.temperature is not None else [])
        assert all(part.isfinite().all() for part in parts)
        gradients = torch.autograd.grad(sum(part.sum() for part in parts), [features, *encoding.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_temperature_is_one_at_collapse():
    """One hypothesis, hardly any uncertainty, no extent."""
    rays = replace(chosen_rays(9), patch_variance=0)
    for temperature in ('none', 'learned', 'key_rms', 'token'):
        encoding = WorldRoPE(8, 32, [20], bands='mixed', temperature=temperature, spread=(1e-6, 1e-5, 0.5)).double()
        keys = encoding.rotate_keys(encoding.prepare(rays), torch.randn(1, 9, 256).double())
        x = torch.randn(1, 9, 8, 32).double()
        torch.testing.assert_close(keys.apply(x, tempered=True).norm(dim=-1), x.norm(dim=-1), rtol=1e-4, atol=0)
    encoding = WorldRoPE(8, 32, [20], bands='mixed').double()
    assert (encoding.rotate_keys(encoding.prepare(rays), torch.randn(1, 9, 256).double()).temperature > 1.1).all()


def test_temperature_restores_the_size_of_keys():
    encoding = WorldRoPE(8, 32)
    sure = Rotation.from_phase(torch.randn(1, 1, 9, 16))
    torch.testing.assert_close(encoding._temperature(sure, None), torch.ones(1, 1, 9, 1), atol=1e-4, rtol=0)
    doubtful = Rotation(sure.cos * 0.5, sure.sin * 0.5)
    torch.testing.assert_close(encoding._temperature(doubtful, None), torch.full((1, 1, 9, 1), 2.0), atol=1e-3, rtol=0)
    nothing = Rotation(sure.cos * 0, sure.sin * 0)
    assert (encoding._temperature(nothing, None) == 4).all()
    assert (WorldRoPE(8, 32, max_temperature=1.5)._temperature(nothing, None) == 1.5).all()


def test_learnt_temperatures_are_scales_per_head():
    torch.manual_seed(0)
    rotation, features = Rotation(0.5 * torch.ones(1, 1, 9, 16), torch.zeros(1, 1, 9, 16)), torch.randn(1, 9, 256)
    learned, token = WorldRoPE(8, 32, temperature='learned'), WorldRoPE(8, 32, temperature='token')
    assert (learned._temperature(rotation, features) == 1).all() and learned.log_scale.numel() == 8
    key_rms = WorldRoPE(8, 32)._temperature(rotation, features)
    torch.testing.assert_close(token._temperature(rotation, features), key_rms.expand(1, 8, 9, 1))
    with torch.no_grad():
        learned.log_scale += torch.arange(8.0).view(1, 8, 1, 1) / 8
        torch.nn.init.normal_(token.log_scale.weight, std=0.02)
    torch.testing.assert_close(learned._temperature(rotation, features).flatten(), (torch.arange(8) / 8).exp())
    scales = (features @ token.log_scale.weight.T).exp().transpose(1, 2)[..., None]  # (1, heads, L, 1)
    torch.testing.assert_close(token._temperature(rotation, features), 2 * scales, rtol=1e-3, atol=0)


def test_box_sized_query_is_the_mean_over_its_gaussian():
    torch.manual_seed(0)
    encoding = WorldRoPE(2, 32, bands='mixed', query_deviation=[0.9, 0.9, 0.5])
    point = torch.tensor([10.0, -4.0, 0.5])
    phase = Bands('mixed', 2, 32)(point + torch.randn(100000, 3) * torch.tensor([0.9, 0.9, 0.5]))
    rotation = encoding.rotate_queries(point[None, None])
    sampled = torch.polar(torch.ones_like(phase), phase).mean(0)
    assert (torch.complex(rotation.cos, rotation.sin)[0, :, 0] - sampled).abs().max() < 0.015
