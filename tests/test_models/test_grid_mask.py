"""GridMask: what it keeps, and where its chance comes from."""
import pytest
import torch
from mmdet3d.models import Det3DDataPreprocessor
from mmdet3d.structures import Det3DDataSample
from mmengine.registry import init_default_scope

from georope.models.grid_mask import GridMask


def keep(prob, shape=(2, 3, 3, 64, 96), seed=0, **kwargs):
    torch.manual_seed(seed)
    imgs, samples = GridMask(prob, **kwargs)(torch.full(shape, 2.), 'samples')
    assert samples == 'samples' and imgs.shape == shape and imgs.unique().tolist() in ([0., 2.], [2.])
    mask = imgs.bool()
    assert (mask == mask[..., :1, :, :]).all()  # alike in all colours
    return mask[..., 0, :, :]


@pytest.mark.parametrize('ratio', [.2, .5, .8])
def test_stripes_stay_and_squares_go(ratio):
    squares = set()
    for mask in keep(1., (50, 3, 64, 96), ratio=ratio):
        rows, columns = mask.all(1), mask.all(0)
        assert torch.equal(mask, rows[:, None] | columns[None])
        # runs of masked rows, without those cut by the border, are all of one length
        runs = [len(run) for run in ''.join('.x'[int(not row)] for row in rows).split('.') if run][1:-1]
        assert len(set(runs)) <= 1
        squares.update(runs)
    assert len(squares) > 3  # each image has its own period
    shares = 1 - keep(1., (500, 1, 64, 96), ratio=ratio).float().mean((1, 2))
    assert shares.mean().item() == pytest.approx((1 - ratio)**2, abs=.05)


def test_chance_and_own_masks():
    masks = keep(.7, (400, 2, 1, 32, 32))
    masked = ~masks.all(-1).all(-1)
    assert masked.float().mean().item() == pytest.approx(.7, abs=.05)
    assert not torch.equal(masks[:, 0], masks[:, 1])  # the cameras of a frame differ
    assert keep(0.).all()


def test_repeats_with_the_seed_of_torch():
    assert torch.equal(keep(.7, seed=4), keep(.7, seed=4)) and not torch.equal(keep(1., seed=4), keep(1., seed=5))
    assert keep(1., (4, 3, 2, 5)).shape == (4, 2, 5)  # smaller than any grid


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_dtype_is_kept(dtype):
    assert GridMask()(torch.ones(1, 2, 3, 32, 32, dtype=dtype), [])[0].dtype == dtype


def test_in_the_preprocessor_in_training_only():
    init_default_scope('mmdet3d')
    preprocessor = Det3DDataPreprocessor(
        mean=[100.] * 3, std=[50.] * 3, pad_size_divisor=32, batch_augments=[dict(type='georope.GridMask', prob=1.)])
    data = dict(inputs=dict(img=[torch.full((2, 3, 30, 60), 200, dtype=torch.uint8)]), data_samples=[Det3DDataSample()])
    torch.manual_seed(0)
    trained, tested = (preprocessor(data, training)['inputs']['imgs'] for training in (True, False))
    assert trained.shape == tested.shape == (1, 2, 3, 32, 64)
    assert (tested[..., :30, :60] == 2).all() and trained.unique().tolist() == [0., 2.]
