import numpy as np
import pytest
import torch
from model_factory import cameras, metas, sample

from georope.models.cameras import padded_tokens, stack_matrices

CPU = torch.device('cpu')


def test_matrices_of_all_shapes_and_each_sample():
    """3x3, 3x4 and 4x4 intrinsics in one batch, each sample its own."""
    stored = [cameras(3, seed)[1] for seed in range(3)]
    batch = [dict(cam2img=stored[0]), dict(cam2img=stored[1][:, :3]), dict(cam2img=list(stored[2][:, :3, :3]))]
    stacked = stack_matrices(batch, 'cam2img', 3, 3)
    assert stacked.dtype == torch.float64
    np.testing.assert_array_equal(stacked, np.stack(stored)[..., :3, :3])


@pytest.mark.parametrize('change, message', [
    (lambda m: m.pop('lidar2img'), 'lidar2img'),
    (lambda m: m.update(lidar2img=m['lidar2img'][:1]), 'one matrix per image'),
    (lambda m: m.update(lidar2img=m['lidar2img'][:, :3]), 'one matrix per image'),
    (lambda m: m['lidar2img'].__setitem__((1, 0, 2), np.nan), r"\['CAM_1'\]"),
    (lambda m: m['lidar2img'].__setitem__(1, 0), r"\['CAM_1'\]"),
])
def test_bad_calibration_names_sample_and_camera(change, message):
    fine, bad = metas([sample('fine'), sample('the-token')])
    change(bad)
    with pytest.raises(ValueError, match=f'the-token.*{message}'):
        stack_matrices([fine, bad], 'lidar2img', 2, 4)


def test_padding_is_what_lies_outside_the_valid_image():
    assert padded_tokens([dict(img_shape=[(64, 96)] * 2)] * 2, 2, (4, 6), 16, CPU) is None
    # Centres of rows: 8, 24, 40, 56; of columns 8 ... 88.
    batch = [dict(img_shape=[(56, 96, 3), (57, 89, 3)]), dict(img_shape=(64, 50))]
    padding = padded_tokens(batch, 2, (4, 6), 16, CPU).reshape(2, 2, 4, 6)
    assert padding[0, 0].any(1).tolist() == [False, False, False, True] and padding[0, 0, 3].all()
    assert not padding[0, 1].any()
    assert padding[1].all(1).tolist() == [[False, False, False, True, True, True]] * 2
