import pytest
import torch

from georope.registry import MODELS


def build(**options):
    return MODELS.build(dict(type='georope.CPFPN', in_channels=[4, 8, 16], out_channels=6, num_outs=2) | options)


def test_levels_and_names():
    neck = build()
    assert set(neck.state_dict()) == {f'{name}.conv.{kind}' for kind in ('weight', 'bias') for name in (
        'lateral_convs.0', 'lateral_convs.1', 'lateral_convs.2', 'fpn_convs.0')}
    inputs = [torch.randn(2, 4, 9, 13), torch.randn(2, 8, 5, 7), torch.randn(2, 16, 3, 4)]  # odd sizes
    fine, coarse = neck(inputs)
    assert fine.shape == (2, 6, 9, 13) and coarse.shape == (2, 6, 5, 7)
    up = torch.nn.functional.interpolate(neck.lateral_convs[2](inputs[2]), size=(5, 7))
    torch.testing.assert_close(coarse, neck.lateral_convs[1](inputs[1]) + up)


def test_no_unused_parameters():
    neck = build()
    neck([torch.randn(1, 4, 8, 8), torch.randn(1, 8, 4, 4), torch.randn(1, 16, 2, 2)])[0].sum().backward()
    assert all(parameter.grad is not None for parameter in neck.parameters())


def test_too_many_outputs():
    with pytest.raises(ValueError, match='num_outs=4'):
        build(num_outs=4)
