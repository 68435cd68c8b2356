import pytest
import torch
from cameras import augmentations, camera, cameras, rig
from hypothesis import given, settings
from hypothesis import strategies as st

from georope.rope import Rays, WorldRoPE


def project(lidar2img, points):
    """Pixels (..., 2) and depths (...) of points (..., 3)."""
    homogeneous = points @ lidar2img[:3, :3].T + lidar2img[:3, 3]
    return homogeneous[..., :2] / homogeneous[..., 2:], homogeneous[..., 2]


def centres(rows, columns, stride):
    v, u = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing='ij')
    return torch.stack((u, v), -1).flatten(0, 1).double() * stride


@settings(deadline=None)
@given(cameras, augmentations, st.integers(1, 9), st.integers(1, 9), st.sampled_from([8, 16, 32]))
def test_lifted_points_project_to_their_pixel_and_depth(matrix, augmentation, rows, columns, stride):
    lidar2img = matrix @ torch.linalg.inv(augmentation)  # points move by the augmentation, pixels stay
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 2e-2)):
        rays = Rays.from_lidar2img(lidar2img.to(dtype)[None, None], (rows, columns), stride)
        assert rays.directions.dtype == dtype
        depths = [1.0, 7.5, 60.0]
        pixels, seen = project(lidar2img.to(dtype).double(), rays.points(depths)[0].double())
        expected = centres(rows, columns, stride)[:, None].expand(-1, 3, -1)
        assert (pixels - expected).abs().max() < tolerance
        torch.testing.assert_close(seen, torch.tensor(depths).double().expand_as(seen), rtol=1e-4, atol=1e-4)


def test_tokens_are_ordered_camera_row_column():
    lidar2img = rig(3)[None]
    rays = Rays.from_lidar2img(lidar2img, (2, 5), 16)
    points = rays.points([10.0])[0, :, 0].unflatten(0, (3, 10))
    for cam in range(3):
        pixels, _ = project(lidar2img[0, cam], points[cam])
        torch.testing.assert_close(pixels, centres(2, 5, 16))


def test_tokens_know_their_camera():
    """Also of those chosen, whose inverse projection gives their points."""
    rays = Rays.from_lidar2img(torch.stack((rig(3), rig(3).flip(0))), (2, 5), 16)
    assert rays.cameras.tolist() == [[0] * 10 + [1] * 10 + [2] * 10] * 2
    some = rays.select(torch.tensor([[29, 0, 12], [3, 14, 21]]))
    assert some.cameras.tolist() == [[2, 0, 1], [0, 1, 2]] and some.to(torch.float32).cameras.dtype == torch.int64
    depth, ones = 7.0, torch.ones(2, 3, 1).double()
    matrices = rays.img2lidar[torch.arange(2)[:, None], some.cameras]
    lifted = (matrices @ torch.cat((some.pixels * depth, ones * depth, ones), dim=-1)[..., None])[..., 0]
    torch.testing.assert_close(lifted, some.points([depth])[:, :, 0])


@settings(deadline=None)
@given(cameras)
def test_footprint_is_the_change_of_direction_per_pixel(matrix):
    near, far = (Rays.from_lidar2img(matrix[None, None], (4, 4), stride) for stride in (16, 16.002))
    # moving the token centre of row i, column j by ((j + .5) * .002, (i + .5) * .002) pixels
    moved = centres(4, 4, 0.002)
    change = (near.footprints[0] * moved[..., None]).sum(1)
    torch.testing.assert_close(far.directions[0] - near.directions[0], change, rtol=1e-4, atol=1e-9)
    assert near.patch_variance == pytest.approx(16 ** 2 / 12)


@settings(deadline=None)
@given(st.floats(200, 1300), st.floats(200, 1300), st.sampled_from([1, -1]), st.floats(-20, 20), st.floats(-200, 900),
       st.floats(-3, 3), augmentations)
def test_focal_length_whatever_flip_crop_skew_and_bev_scale(fx, fy, flip, skew, cx, yaw, augmentation):
    lidar2img = camera(yaw, (1.0, -2, 0.5), flip * fx, fy, cx, 77, skew) @ torch.linalg.inv(augmentation)
    focal = Rays.from_lidar2img(lidar2img[None, None], (2, 3), 16).focal_lengths
    torch.testing.assert_close(focal, torch.full((1, 6), (fx * fy) ** 0.5).double(), rtol=1e-7, atol=0)
    turned = torch.eye(4).double()
    turned[:2, :2] = torch.tensor([[0.8, -0.6], [0.6, 0.8]])  # an image turned by augmentation
    focal = Rays.from_lidar2img((turned @ lidar2img)[None, None].float(), (2, 3), 16).focal_lengths
    torch.testing.assert_close(focal, torch.full((1, 6), (fx * fy) ** 0.5), rtol=1e-4, atol=0)


def test_calibrations_may_differ_inside_a_batch():
    both = torch.stack((rig(2), rig(4)[2:]))
    batch = Rays.from_lidar2img(both, (3, 4), 16)
    for i in range(2):
        alone = Rays.from_lidar2img(both[i:i + 1], (3, 4), 16)
        assert torch.equal(batch.directions[i:i + 1], alone.directions)
        assert torch.equal(batch.origins[i:i + 1], alone.origins)


def test_autocast_changes_no_bit():
    lidar2img = rig().float()[None]
    plain = Rays.from_lidar2img(lidar2img, (4, 11), 16)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = Rays.from_lidar2img(lidar2img, (4, 11), 16)
    for name in ('origins', 'directions', 'footprints'):
        assert getattr(cast, name).dtype == torch.float32
        assert torch.equal(getattr(cast, name), getattr(plain, name))


@pytest.mark.parametrize('spoil', [lambda m: m.zero_(), lambda m: m.fill_(float('nan')), lambda m: m[2].zero_()])
def test_a_camera_that_cannot_be_inverted_is_named(spoil):
    lidar2img = rig()[None].repeat(2, 1, 1, 1)
    spoil(lidar2img[1, 4])
    with pytest.raises(ValueError, match=r'\[\[1, 4\]\]'):
        Rays.from_lidar2img(lidar2img, (4, 11), 16)


def test_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r'\(B, N, 4, 4\)'):
        Rays.from_lidar2img(camera()[None], (4, 11), 16)


def test_tokens_of_two_scales_keep_their_own_patches():
    """In what an encoding prepares, in whose patch a point lies, and among chosen tokens."""
    scales = [Rays.from_lidar2img(rig(2)[None], (rows, 2 * rows), stride) for rows, stride in ((4, 16), (2, 32))]
    both = Rays.concatenate(scales)
    assert both.patch_variance.flatten().tolist() == [16 ** 2 / 12] * 64 + [32 ** 2 / 12] * 16
    encoding = WorldRoPE(2, 16, num_layers=1).double()
    alone, together = [encoding.prepare(rays).patch for rays in scales], encoding.prepare(both).patch
    assert torch.equal(together, torch.cat(alone, dim=1))
    assert alone[1].max() > 3 * alone[0].max()
    points = scales[0].points([9.0])[:, ::5, 0]
    assert torch.equal(both.locate(points), torch.cat([rays.locate(points) for rays in scales], dim=1))
    assert all(rays.locate(points).isfinite().any(1).all() for rays in scales)  # seen once on each scale
    some = both.select(torch.tensor([[70, 3]]))
    assert some.to(torch.float32).patch_variance.flatten().tolist() == pytest.approx([32 ** 2 / 12, 16 ** 2 / 12])
    with pytest.raises(ValueError, match='must cover the same pixels'):
        Rays.concatenate([scales[0], Rays.from_lidar2img(rig(2)[None], (3, 4), 32)])
