"""The closed form of WorldRoPE and RayRoPE against sampling, integrals, limits, and finite differences."""
import math

import pytest
import torch
from cameras import camera, rig

from georope.rope import RayRoPE, Rays, RotaryAttention, Rotation, URoPE, WorldRoPE
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
    return torch.complex(*expected_rotation(weights, depths, deviations, frame.origin, frame.along, patch))


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_sampling_depth_and_pixel_gives_the_closed_form(bands):
    """A patch is a square, the closed form's a Gaussian of the same variance: that shows where a patch spans more than
    a radian (the shortest wave, 1.5 m, beyond 20 m); elsewhere they agree to .02."""
    torch.manual_seed(0)
    tokens, samples = 6, 60000
    rays, encoding = chosen_rays(tokens), WorldRoPE(2, 32, bands=bands).double()
    weights = torch.rand(1, tokens, 4).double().softmax(-1)
    depths = torch.tensor([5.0, 12, 25, 45]).double() * (0.8 + 0.4 * torch.rand(1, tokens, 4).double())
    deviations = depths * torch.linspace(0.02, 0.35, tokens)[:, None]
    closed = coefficients(encoding, rays, weights, depths, deviations)
    for token in range(tokens):
        m = torch.multinomial(weights[0, token], samples, replacement=True)
        depth = depths[0, token, m] + deviations[0, token, m] * torch.randn(samples).double()
        pixel = (torch.rand(samples, 2).double() - 0.5) * 16
        direction = rays.directions[0, token] + pixel @ rays.footprints[0, token]
        phase = encoding.bands(rays.origins[0, token] + depth[:, None] * direction)
        sampled = torch.polar(torch.ones_like(phase), phase).mean(0)
        error = (sampled - closed[0, :, token]).abs()
        fine = encoding.prepare(rays).patch[0, token] * depths[0, token].max() ** 2 < 1
        assert error[fine].max() < 0.02 and error.max() < 0.05 and fine.float().mean() > 0.9
    assert closed.abs().min() < 0.3 < 0.9 < closed.abs().max()  # damped and undamped bands occur


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_a_sure_hypothesis_without_extent_is_3d_rope(bands):
    rays, encoding = chosen_rays(9), WorldRoPE(8, 32, bands=bands).double()
    depth = 3 + 50 * torch.rand(1, 9, 1).double()
    c = coefficients(encoding, rays, torch.ones_like(depth), depth, torch.zeros_like(depth), extent=False)
    rotation = encoding.rotate_queries(rays.origins + depth * rays.directions)
    torch.testing.assert_close(c, torch.complex(rotation.cos, rotation.sin))


@pytest.mark.parametrize('hypothesis', range(4))
def test_one_hot_weights_on_anchors_are_urope(hypothesis):
    rays, anchors = chosen_rays(9), [5.0, 12.0, 25.0, 45.0]
    depths = torch.tensor(anchors).double().expand(1, 9, 4)
    weights = torch.zeros_like(depths)
    weights[..., hypothesis] = 1
    c = coefficients(WorldRoPE(8, 32).double(), rays, weights, depths, torch.zeros_like(depths), extent=False)
    urope = URoPE(8, 32, anchors=[anchors[hypothesis]]).double().prepare(rays)
    torch.testing.assert_close(c, torch.complex(urope.cos, urope.sin))


def test_endless_doubt_leaves_bands_across_the_ray():
    rays, encoding = chosen_rays(9), WorldRoPE(8, 32, bands='mixed').double()
    depth = torch.full((1, 9, 1), 20.0).double()
    c = coefficients(encoding, rays, torch.ones_like(depth), depth, depth * 1e4, extent=False)
    along = encoding.prepare(rays).along.transpose(1, 2)
    assert c[along.abs() > 1e-3].abs().max() < 1e-3
    c = coefficients(encoding, Rays(rays.origins, 0 * rays.directions, rays.footprints, rays.pixels, 0, (1, 1)),
                     torch.ones_like(depth), depth, depth * 1e4)
    torch.testing.assert_close(c.abs(), torch.ones_like(c.abs()))


def test_interval_is_the_integral_over_its_depths():
    torch.manual_seed(0)
    rays, encoding = chosen_rays(7), RayRoPE(8, 32, bands='mixed').double()
    torch.nn.init.normal_(encoding.predictors[2].weight, std=0.1)
    features = torch.randn(1, 7, 256).double()
    keys = encoding.rotate_keys(encoding.prepare(rays), features, layer=2)
    middle, half = encoding.predictors[2](features)
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
    """METHOD section 2: a ray at 45 degrees, 20 m away with 4 m of doubt."""
    rays = Rays.from_lidar2img(camera(math.pi / 4, fx=560, cx=8, cy=8)[None, None], (1, 1), 16)
    depths = torch.full((1, 1, 1), 20.0).double()

    def size(direction, wavelength):
        band = 2 * math.pi / wavelength * torch.tensor(direction).double()
        patch = rays.patch_variance * (rays.footprints @ band).square().sum(-1)
        along, zero = rays.directions @ band, torch.zeros(1, 1, 1, 1).double()
        c = expected_rotation(torch.ones_like(depths), depths, torch.full_like(depths, 4.0), zero,
                              along.view(1, 1, 1, 1), patch.view(1, 1, 1, 1))
        return math.hypot(*(x.item() for x in c))
    across = (math.sqrt(0.5), math.sqrt(0.5), 0.0)  # the ray points to (-1, 1)
    assert size(across, 2.0) > 0.86
    for axis in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)):
        assert all(size(axis, wavelength) < 0.45 for wavelength in (2.0, 5.0, 10.0, 14.0))
        assert size(axis, 5.0) < 0.01


def test_gradients_of_the_closed_form():
    torch.manual_seed(0)
    shape = (1, 3, 2)
    inputs = (torch.rand(shape), 10 * torch.rand(shape), torch.rand(shape), torch.randn(1, 3, 2, 4),
              0.3 * torch.randn(1, 3, 2, 4), 0.02 * torch.rand(1, 3, 2, 4))
    assert torch.autograd.gradcheck(expected_rotation, [x.double().requires_grad_() for x in inputs])


@pytest.mark.parametrize('options', [
    dict(temperature='token', bands=dict(type='mixed', learnable=True)), dict(temperature='learned'),
    dict(temperature='none', rotate_values=False), dict(temperature='key_rms', query_deviation=[1.0, 0.5, 0.2])],
    ids=lambda options: options['temperature'])
def test_gradients_through_attention(options):
    torch.manual_seed(0)
    attention, encoding = RotaryAttention(16, 2).double(), WorldRoPE(2, 8, [5, 20], num_layers=1, **options).double()
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


def test_temperature_restores_the_size_of_keys():
    encoding = WorldRoPE(8, 32)
    sure = Rotation.from_phase(torch.randn(1, 1, 9, 16))
    torch.testing.assert_close(encoding._temperature(sure, None), torch.ones(1, 1, 9, 1), atol=1e-4, rtol=0)
    doubtful = Rotation(sure.cos * 0.5, sure.sin * 0.5)
    torch.testing.assert_close(encoding._temperature(doubtful, None), torch.full((1, 1, 9, 1), 2.0), atol=1e-3, rtol=0)
    nothing = Rotation(sure.cos * 0, sure.sin * 0)
    assert (encoding._temperature(nothing, None) == 4).all()


def test_box_sized_query_is_the_mean_over_its_gaussian():
    torch.manual_seed(0)
    encoding = WorldRoPE(2, 32, bands='mixed', query_deviation=[0.9, 0.9, 0.5])
    point = torch.tensor([10.0, -4.0, 0.5])
    phase = Bands('mixed', 2, 32)(point + torch.randn(100000, 3) * torch.tensor([0.9, 0.9, 0.5]))
    rotation = encoding.rotate_queries(point[None, None])
    sampled = torch.polar(torch.ones_like(phase), phase).mean(0)
    assert (torch.complex(rotation.cos, rotation.sin)[0, :, 0] - sampled).abs().max() < 0.015
