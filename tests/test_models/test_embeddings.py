import numpy as np
import pytest
import torch
from model_factory import POSITION_RANGE, cameras

from georope.models.embeddings import (
    MLN,
    cone_code,
    frustum_coordinates,
    inverse_sigmoid,
    lid_depths,
    nerf_embedding,
    sine_embedding,
    sine_embedding_3d,
)
from georope.rope import Rays


def test_golden(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'assign_decode.npz').items()}
    torch.testing.assert_close(inverse_sigmoid(arrays['inverse_sigmoid.in']), arrays['inverse_sigmoid.out'])
    torch.testing.assert_close(sine_embedding_3d(arrays['posenc.in'], 128), arrays['posenc.pos2posemb3d'],
                               atol=1e-5, rtol=0)
    expected = arrays['posenc.pos2posemb1d']
    torch.testing.assert_close(sine_embedding(arrays['posenc.in'][..., 0], 256), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(nerf_embedding(arrays['posenc.nerf_in']), arrays['posenc.nerf_out'], atol=1e-5, rtol=0)


def test_lid_depths():
    depths = lid_depths(64, 1.0, 61.2)
    assert depths[0] == 1 and depths[-1] == pytest.approx(59.35, abs=5e-3)
    steps = depths.diff()
    torch.testing.assert_close(steps.diff(), torch.full((62, ), 2 * 60.2 / (64 * 65)), atol=1e-4, rtol=0)


def test_frustum_coordinates_are_normalised_points():
    lidar2img, _ = cameras(2)
    rays = Rays.from_lidar2img(torch.from_numpy(lidar2img)[None], (2, 3), 16)
    position_range = torch.tensor(POSITION_RANGE)
    coordinates = frustum_coordinates(rays, torch.tensor([2.0, 7.0]), position_range).reshape(1, 12, 2, 3)
    points = coordinates * (position_range[3:] - position_range[:3]) + position_range[:3]
    # Token 7 is camera 1, row 0, column 1: pixel (24, 8).
    u, v, depth = (torch.from_numpy(lidar2img[1])[:3] @ torch.cat((points[0, 7, 1], torch.ones(1)))).tolist()
    assert (u / depth, v / depth, depth) == pytest.approx((24, 8, 7))


def test_cone_code_order():
    coordinates = torch.arange(2 * 6 * 192.0).reshape(2, 6, 192)
    focal = torch.tensor([1000, 2000, -3000, 4000, 5000, 6000.0]).reshape(1, 6, 1).repeat(2, 1, 2)
    cone = cone_code(coordinates, focal)
    assert cone[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6]  # flips do not matter
    assert torch.equal(cone[..., 2:5], coordinates[..., 189:192])  # bin 63
    assert torch.equal(cone[..., 5:8], coordinates[..., 102:105])  # bin 34


def test_mln_starts_as_a_plain_norm():
    x = torch.randn(2, 5, 16) * 3 + 1
    torch.testing.assert_close(MLN(8, 16)(x, torch.randn(2, 5, 8)), torch.nn.functional.layer_norm(x, (16, )))
