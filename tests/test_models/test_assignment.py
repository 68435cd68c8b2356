import json
import math

import numpy as np
import pytest
import torch
from mmdet.models.task_modules.assigners import AssignResult, HungarianAssigner
from mmengine.structures import InstanceData
from model_factory import boxes, sample

from georope.models.assignment import Targets, match, read_targets
from georope.models.box_code import encode
from georope.registry import TASK_UTILS


def assigner(with_velocity=False):
    return TASK_UTILS.build(dict(type='georope.HungarianAssigner3D', match_costs=[
        dict(type='mmdet.FocalLossCost', weight=2.0),
        dict(type='georope.BBox3DL1Cost', weight=0.25, with_velocity=with_velocity)]))


@pytest.fixture(scope='module')
def golden(golden_folder):
    cases = json.loads((golden_folder / 'assign_decode.json').read_text())['cases']
    return cases, {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'assign_decode.npz').items()}


@pytest.mark.parametrize('case', range(6))
def test_golden(golden, case):
    cases, arrays = golden
    settings = cases[f'h3d.{case}']
    logits, codes, gt, labels, gt_inds = (arrays[f'h3d.{case}.{key}']
                                          for key in ('logits', 'pred', 'gt', 'gt_labels', 'gt_inds'))
    weights = torch.tensor(settings['code_weights'] or [1.0] * 10)
    solver = assigner(settings['with_velo'])
    predictions = InstanceData(scores=logits, codes=codes * weights)
    truth = InstanceData(labels=labels, codes=encode(gt) * weights)
    result = solver.assign(predictions, truth)
    if len(gt):
        cost = sum(cost(predictions, truth) for cost in solver.match_costs)
        # Case 4: the reference gives an object of unknown velocity a column of 100 and so a random query; we match it
        # by what is known of it.
        known = ~gt.isnan().any(-1)
        torch.testing.assert_close(cost[:, known], arrays[f'h3d.{case}.cost'][:, known], atol=1e-4, rtol=1e-5)
        assert cost.isfinite().all()
    if case != 4:
        assert torch.equal(result.gt_inds, gt_inds)

    matched_labels, positive, true_codes = (
        x[0] for x in match(solver, logits[None, None], codes[None, None], [Targets(gt, labels)], weights))
    assert torch.equal(positive, result.gt_inds.nonzero()[:, 0])
    expected = torch.where(result.gt_inds > 0, result.labels, 10)
    assert torch.equal(matched_labels[0], expected)
    assert torch.equal(torch.nan_to_num(true_codes), torch.nan_to_num(encode(gt)[result.gt_inds[positive] - 1]))


def test_unknown_velocity_matches_by_the_rest():
    truth = boxes(6)
    codes = encode(truth)[torch.randperm(6, generator=torch.Generator().manual_seed(1))]
    expected = assigner(True).assign(InstanceData(scores=torch.zeros(6, 10), codes=codes),
                                     InstanceData(labels=torch.arange(6), codes=encode(truth)))
    truth[2, 7:] = math.nan
    result = assigner(True).assign(InstanceData(scores=torch.zeros(6, 10), codes=codes),
                                   InstanceData(labels=torch.arange(6), codes=encode(truth)))
    assert torch.equal(result.gt_inds, expected.gt_inds)


def test_more_objects_than_queries_and_none():
    logits, codes = torch.zeros(2, 3, 10), encode(boxes(6)).reshape(2, 3, 10)
    targets = [Targets(boxes(5), torch.arange(5)), Targets(boxes(0), torch.zeros(0, dtype=torch.long))]
    labels, positive, true_codes = (
        x[0] for x in match(assigner(), logits[None], codes[None], targets, torch.ones(10)))
    assert positive.tolist() == [0, 1, 2] and true_codes.shape == (3, 10)
    assert (labels[1] == 10).all()
    torch.testing.assert_close(true_codes, codes[0])


def test_read_targets():
    data_sample = sample(num_boxes=4)
    data_sample.gt_instances_3d.bboxes_3d.tensor[1, 7:] = math.nan
    target, empty = read_targets([data_sample, sample('b', 0)], 10, torch.device('cpu'))
    torch.testing.assert_close(target.boxes[0], boxes(4)[0])
    assert target.codes[1].isnan().sum() == 2
    assert empty.boxes.shape == (0, 9) and empty.codes.shape == (0, 10)


@pytest.mark.parametrize('column, value', [
    (0, math.nan), (2, math.inf), (3, 0.0), (4, -1.0), (6, math.nan), (7, math.inf)])
def test_bad_boxes_name_the_sample(column, value):
    data_sample = sample('the-token', num_boxes=2)
    data_sample.gt_instances_3d.bboxes_3d.tensor[1, column] = value
    with pytest.raises(ValueError, match='the-token'):
        read_targets([sample('fine'), data_sample], 10, torch.device('cpu'))


@pytest.mark.parametrize('label', [-1, 10])
def test_bad_labels_name_the_sample(label):
    data_sample = sample('the-token', num_boxes=2)
    data_sample.gt_instances_3d.labels_3d[1] = label
    with pytest.raises(ValueError, match='the-token'):
        read_targets([data_sample], 10, torch.device('cpu'))


class Backwards(HungarianAssigner):
    """An own solver: the last objects to the first queries whose first score is not negative."""

    def assign(self, pred_instances, gt_instances, img_meta=None, **kwargs):
        num, labels = len(gt_instances), gt_instances.labels
        gt_inds = torch.zeros(len(pred_instances), dtype=torch.long)
        gt_inds[:num] = torch.arange(num, 0, -1)
        gt_inds[pred_instances.scores[:, 0] < 0] = 0
        return AssignResult(num, gt_inds, None, labels)


def test_an_own_assigner_is_asked():
    targets = [Targets(boxes(2), torch.arange(2)), Targets(boxes(1), torch.full((1, ), 7))]
    logits = torch.zeros(2, 2, 3, 10)
    logits[0, 0, 1] = -1  # fewer matches in one layer than in the other
    labels, positive, true_codes = match(Backwards([dict(type='mmdet.FocalLossCost')]), logits,
                                         torch.zeros(2, 2, 3, 10), targets, torch.ones(10))
    assert labels.tolist() == [[[1, 10, 10], [7, 10, 10]], [[1, 0, 10], [7, 10, 10]]]
    assert [one.tolist() for one in positive] == [[0, 3], [0, 1, 3]]
    assert torch.equal(true_codes[0], encode(torch.cat((boxes(2)[1:], boxes(1)))))
    assert torch.equal(true_codes[1], encode(torch.cat((boxes(2).flip(0), boxes(1)))))


def test_all_layers_and_samples_at_once():
    """As one by one, for mmdet's own assigner too; one sample is without objects."""
    generator = torch.Generator().manual_seed(0)
    logits, codes = (torch.randn(3, 3, 6, 10, generator=generator) for _ in range(2))
    targets = [Targets(boxes(count, count), torch.arange(count)) for count in (4, 0, 9)]
    own = assigner()
    mmdets = HungarianAssigner([dict(type='mmdet.FocalLossCost')])
    mmdets.match_costs = own.match_costs
    labels, positive, true_codes = match(mmdets, logits, codes, targets, torch.ones(10))
    for i in range(3):
        for b, target in enumerate(targets):
            result = own.assign(InstanceData(scores=logits[i, b], codes=codes[i, b]),
                                InstanceData(labels=target.labels, codes=target.codes))
            matched = result.gt_inds.nonzero()[:, 0]
            here = positive[i] // 6 == b
            assert torch.equal(positive[i][here] % 6, matched)
            assert torch.equal(true_codes[i][here], target.codes[result.gt_inds[matched] - 1])
            assert torch.equal(labels[i, b], torch.where(result.gt_inds > 0, result.labels, 10))
