import math

import pytest
import torch
from model_factory import PC_RANGE, boxes

from georope.models.assignment import Targets
from georope.models.denoising import Denoising

PC_RANGE = torch.tensor(PC_RANGE)


def targets(*counts):
    return [Targets(boxes(count, seed), torch.arange(count) % 10) for seed, count in enumerate(counts)]


@pytest.mark.parametrize('counts', [(3, 0), (2, 5), (0, 4), (3, )])
def test_layout(counts):
    """Unequal counts, samples without objects."""
    torch.manual_seed(0)
    truth = targets(*counts)
    queries = Denoising(groups=4)(truth, PC_RANGE, 7, 10)
    size = max(counts)
    assert queries.reference_points.shape == (len(counts), 4 * size, 3)
    assert len(queries.labels) == 4 * sum(counts)
    for i, count in enumerate(counts):
        filled = ~queries.empty[i].reshape(4, size)
        assert (filled.sum(1) == count).all() and filled[:, :count].all()
    lower, upper = PC_RANGE.chunk(2)
    points = queries.reference_points[queries.sample, queries.query] * (upper - lower) + lower
    order = [(i, k) for _ in range(4) for i, count in enumerate(counts) for k in range(count)]
    clean = torch.stack([truth[i].boxes[k] for i, k in order])
    assert ((points - clean[:, :3]).abs() <= clean[:, 3:6] / 2 + 1e-4).all()
    assert (points - clean[:, :3]).abs().max() > 0.1
    torch.testing.assert_close(queries.codes, torch.cat([target.codes for target in truth])[
        [sum(counts[:i]) + k for i, k in order]])


def test_mask():
    mask = Denoising(groups=2)(targets(2, 1), PC_RANGE, 3, 10).mask
    group = torch.tensor([0, 0, 1, 1])
    assert torch.equal(mask[:4, :4], group != group[:, None])  # own group only
    assert not mask[:, 4:].any()  # everyone sees the learned queries
    assert mask[4:, :4].all()  # which see no noisy object


def test_no_noise_gives_clean_centres_and_classes():
    """With noise_scale 0 centres are normalised all the same, and nothing turns into background."""
    truth = targets(3)
    queries = Denoising(groups=2, noise_scale=0)(truth, PC_RANGE, 5, 10)
    lower, upper = PC_RANGE.chunk(2)
    expected = ((truth[0].boxes[:, :3] - lower) / (upper - lower)).repeat(2, 1)
    torch.testing.assert_close(queries.reference_points[0], expected)
    assert torch.equal(queries.labels, truth[0].labels.repeat(2))
    assert Denoising(noise_scale=0).positive_share == 1


def test_far_moves_become_background():
    denoising = Denoising(groups=1, split=0.75)
    noise = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.87, 0.5], [0.5, 0.88, 0.5], [0.0, 0.0, 0.0]])
    denoising.sample_noise = lambda num, device: noise
    assert denoising(targets(4), PC_RANGE, 5, 10).labels.tolist() == [0, 1, 10, 10]


@pytest.mark.parametrize('noise_scale, split', [(1.0, 0.75), (0.5, 0.4), (2.0, 0.75), (0.5, 1.0)])
def test_positive_share(noise_scale, split):
    torch.manual_seed(0)
    denoising = Denoising(groups=400, noise_scale=noise_scale, split=split)
    kept = (denoising(targets(5), PC_RANGE, 5, 10).labels != 10).float().mean().item()
    assert kept == pytest.approx(denoising.positive_share, abs=0.04)
    assert Denoising(split=0.75).positive_share == pytest.approx(math.pi / 6 * 0.75 ** 3)


@pytest.mark.parametrize('options', [dict(groups=0), dict(noise_scale=-1.0), dict(split=0.0)])
def test_bad_settings(options):
    with pytest.raises(ValueError, match='denoising'):
        Denoising(**options)
