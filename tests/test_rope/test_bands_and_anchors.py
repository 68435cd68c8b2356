import math

import pytest
import torch

from georope.rope.bands import Bands
from georope.rope.supports import depth_anchors, fixed_anchors


def test_axial_bands_lie_on_one_axis_each():
    bands = Bands('axial', 8, 32).vectors
    assert bands.shape == (1, 16, 3)
    on_axis = bands[0] != 0
    assert on_axis.sum(0).tolist() == [6, 6, 4] and (on_axis.sum(1) == 1).all()
    wavelength = 2 * math.pi / bands[0].norm(dim=-1)
    assert wavelength[:6].tolist() == pytest.approx([3 * 80 ** (i / 5) for i in range(6)], rel=1e-5)
    assert wavelength[12:].tolist() == pytest.approx([1.5 * 24 ** (i / 3) for i in range(4)], rel=1e-5)


def test_equal_bands_are_as_many_on_each_axis():
    """URoPE's way; ends of the wavelengths as otherwise."""
    bands = Bands(dict(type='axial', equal=True), 8, 32).vectors[0]
    assert (bands != 0).sum(0).tolist() == [5, 5, 5] and (bands[15] == 0).all()
    wavelength = (2 * math.pi / bands.norm(dim=-1)).tolist()
    assert wavelength[0:5:4] == wavelength[5:10:4] == pytest.approx([3, 240], rel=1e-5)
    assert wavelength[10:15:4] == pytest.approx([1.5, 36], rel=1e-5)


@pytest.mark.parametrize('head_dim,unrotated', [(32, 0), (30, 0), (28, 1)])
def test_pairs_that_do_not_divide_stay_unrotated(head_dim, unrotated):
    bands = Bands('axial', 8, head_dim).vectors
    assert (bands.norm(dim=-1) == 0).sum() == unrotated


def test_mixed_bands_give_every_head_other_bearings():
    bands = Bands('mixed', 8, 32).vectors
    assert bands.shape == (8, 16, 3)
    planar = bands[:, :12]
    assert (planar[..., 2] == 0).all() and (bands[:, 12:, :2] == 0).all()
    bearing = torch.rad2deg(torch.atan2(planar[..., 1], planar[..., 0]))
    assert sorted({round(b, 2) for b in bearing.flatten().tolist()}) == pytest.approx(
        [180 / 24 * i for i in range(24)], abs=0.02)  # 3 directions x 8 heads, evenly over the half circle
    wavelength = 2 * math.pi / bands.norm(dim=-1)
    torch.testing.assert_close(wavelength, torch.tensor(
        3 * [3 * 80 ** (i / 3) for i in range(4)] + [1.5 * 24 ** (i / 3) for i in range(4)]).expand(8, 16))


@pytest.mark.parametrize('bands,distinct', [
    ('axial', 16), ('mixed', 8 * 12 + 4), (dict(type='mixed', learnable=True), 8 * 16),
    (dict(type='axial', learnable=True), 16)])
def test_bands_of_all_heads_count_once(bands, distinct):
    torch.manual_seed(0)
    bands, points = Bands(bands, 8, 32), 50 * torch.randn(2, 5, 3)
    for parameter in bands.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    assert bands.distinct(points).shape == (2, 5, distinct)
    expected = torch.einsum('blx,hpx->blhp', points, bands.vectors)
    torch.testing.assert_close(bands(points), expected, atol=1e-4, rtol=1e-4)
    if distinct == 100:
        assert torch.equal(bands.spread(torch.arange(100.0))[:, 12:], torch.arange(96.0, 100).expand(8, 4))


@pytest.mark.parametrize('bands,message', [('spiral', 'spiral'), ({'xy': (3, 240)}, 'None'),
                                           ({'type': 'axial', 'xy': (240, 3)}, 'shortest')])
def test_bad_bands_are_named(bands, message):
    with pytest.raises(ValueError, match=message):
        Bands(bands, 8, 32)


@pytest.mark.parametrize('bands,head_dim,message', [
    ('axial', 2, 'head_dim 2 is too small: axial'), ('mixed', 4, '3 directions do not fit the 2 pairs'),
    (dict(type='mixed', directions=13), 32, '13 directions do not fit the 12 pairs'),
    (dict(type='mixed', directions=0), 32, '0 directions'), (dict(type='axial', xy=(3, float('inf'))), 32, 'inf'),
    (dict(type='axial', z=(3, 1)), 32, 'shortest <= longest')])
def test_bands_that_would_leave_pairs_out_are_refused(bands, head_dim, message):
    with pytest.raises(ValueError, match=message):
        Bands(bands, 8, head_dim)


def test_anchor_spacings():
    assert depth_anchors('linspace', 4, 5, 50) == pytest.approx([5, 20, 35, 50])
    assert depth_anchors('log', 3, 2, 50) == pytest.approx([2, 10, 50])
    assert depth_anchors('lid', 4, 1, 61) == pytest.approx([1, 11, 31, 61])  # steps 10, 20, 30


def test_heads_take_anchors_in_contiguous_groups():
    assert fixed_anchors([5, 12, 25, 45], 8, 16).flatten().tolist() == [5, 5, 12, 12, 25, 25, 45, 45]
    assert fixed_anchors([7], 8, 16).tolist() == [[7]]
    assert fixed_anchors([5, 12, 25, 45], 8, 16, channel_wise=True)[0, :5].tolist() == [5, 12, 25, 45, 5]


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_channel_wise_every_anchor_has_every_wavelength_on_every_axis(bands):
    depths, vectors = fixed_anchors([5, 12, 25, 45], 8, 16, channel_wise=True), Bands(bands, 8, 32).vectors
    seen = [{(round(2 * math.pi / band.norm().item(), 3), bool(band[2])) + (
        (bool(band[0]), ) if bands == 'axial' else ()) for band in vectors.expand(8, -1, -1)[depths == anchor]}
        for anchor in (5, 12, 25, 45)]
    assert all(own == seen[0] for own in seen) and len(seen[0]) == (16 if bands == 'axial' else 8)
    assert all(sorted(set(head.tolist())) == [5, 12, 25, 45] for head in depths)
    with pytest.raises(ValueError, match='channel_wise: 4 anchors need as many heads'):
        fixed_anchors([5, 12, 25, 45], 2, 16, channel_wise=True)


@pytest.mark.parametrize('anchors,message', [
    ([5, 12, 25], '3 anchors do not divide 8 heads'), ([], 'positive'), ([0, 5], 'positive'),
    ([5, float('nan')], 'positive'),
    ({'spacing': 'cubic', 'num': 4, 'start': 1, 'stop': 60}, 'cubic'),
    ({'spacing': 'lid', 'num': 1, 'start': 1, 'stop': 60}, 'single anchor'),
    ({'spacing': 'log', 'num': 4, 'start': 0, 'stop': 60}, 'start')])
def test_bad_anchors_are_named(anchors, message):
    with pytest.raises(ValueError, match=message):
        fixed_anchors(anchors, 8, 16)
