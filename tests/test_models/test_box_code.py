import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmdet3d.structures import LiDARInstance3DBoxes
from model_factory import POSITION_RANGE, boxes

from georope.models import box_code
from georope.models.box_code import NMSFreeCoder, decode, encode, from_lidar_boxes, to_lidar_boxes

number = st.floats(-50, 50, width=32)
size = st.floats(0.125, 32, width=32)
yaw = st.floats(-3.125, 3.125, width=32)


@given(st.tuples(number, number, number, size, size, size, yaw, number, number))
def test_encode_decode_is_the_identity(box):
    box = torch.tensor([box], dtype=torch.float64)
    torch.testing.assert_close(decode(encode(box)), box, atol=1e-9, rtol=1e-9)


def test_layout():
    """Every number where the layout says, told apart by distinct values."""
    code = encode(torch.tensor([1, 2, 3, math.exp(4), math.exp(5), math.exp(6), math.pi / 6, 9, 10.0]))
    torch.testing.assert_close(code, torch.tensor([1, 2, 3, 4, 5, 6, 0.5, math.sqrt(3) / 2, 9, 10]))
    assert code[box_code.CENTRE].tolist() == [1, 2, 3] and code[box_code.VELOCITY].tolist() == [9, 10]
    assert code[box_code.SIN] == pytest.approx(0.5)


def test_lidar_boxes_keep_their_corners():
    ours = boxes(5)
    theirs = to_lidar_boxes(ours)
    torch.testing.assert_close(theirs.gravity_center, ours[:, :3])
    torch.testing.assert_close(theirs.tensor[:, 2], ours[:, 2] - ours[:, 5] / 2)
    again = to_lidar_boxes(decode(encode(from_lidar_boxes(theirs))))
    torch.testing.assert_close(again.corners, theirs.corners, atol=1e-4, rtol=0)
    assert from_lidar_boxes(to_lidar_boxes(boxes(0))).shape == (0, 9)


def test_boxes_without_velocity_are_refused():
    with pytest.raises(ValueError, match='velocity'):
        from_lidar_boxes(LiDARInstance3DBoxes(torch.zeros(2, 7)))


@pytest.fixture(scope='module')
def golden(golden_folder):
    cases = json.loads((golden_folder / 'assign_decode.json').read_text())['cases']
    return cases, {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'assign_decode.npz').items()}


def test_golden_codes(golden):
    arrays = golden[1]
    torch.testing.assert_close(encode(arrays['normalize.in']), arrays['normalize.out'])
    torch.testing.assert_close(decode(arrays['normalize.out']), arrays['denormalize.out'])


@pytest.mark.parametrize('case', range(4))
def test_golden_coder(golden, case):
    cases, arrays = golden
    settings = cases[f'coder.{case}']
    coder = NMSFreeCoder(POSITION_RANGE, settings['max_num'], settings['score_threshold'])
    results = coder.decode(arrays[f'coder.{case}.logits'][-1], arrays[f'coder.{case}.preds'][-1])
    assert len(results) == settings['batch']
    for i, (decoded, scores, labels) in enumerate(results):
        prefix = f'coder.{case}.b{i}.'
        torch.testing.assert_close(decoded, arrays[prefix + 'bboxes_gravity'])
        torch.testing.assert_close(scores, arrays[prefix + 'scores'])
        assert torch.equal(labels, arrays[prefix + 'labels'])


def test_coder_threshold_and_range():
    codes = encode(boxes(3))
    codes[0, 0] = 100  # outside
    logits = torch.full((3, 2), -9.0)
    logits[0, 0], logits[1, 1], logits[2, 0] = 3, 2, 1
    (decoded, scores, labels), = NMSFreeCoder(POSITION_RANGE, 10, 0.5).decode(logits[None], codes[None])
    torch.testing.assert_close(decoded, boxes(3)[1:])
    assert labels.tolist() == [1, 0] and scores.tolist() == pytest.approx([0.8808, 0.7311], abs=1e-4)
    assert len(NMSFreeCoder(POSITION_RANGE, 10, 0.0).decode(logits[None], codes[None])[0][0]) == 4
