"""Parity with FocalHead of the StreamPETR repository: fixtures focal_head and the 2D cases of assign_decode."""
import json

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from model_factory import FOCAL, seeded

from georope.models import focal_head
from georope.registry import MODELS


@pytest.fixture(scope='module')
def golden(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'focal_head.npz').items()}
    return json.loads((golden_folder / 'focal_head.json').read_text()), arrays


@pytest.fixture
def head(golden):
    head = MODELS.build(FOCAL | dict(train_ratio=0.5, infer_ratio=0.25))
    head.load_state_dict({name: seeded(name, shape, rule) for name, shape, rule in golden[0]['state']})
    return head


@pytest.fixture
def features(golden):
    tensor = seeded('focal_head.img_feats', (1, 6, 256, 8, 22), 'normal*1')
    assert torch.equal(tensor.flatten()[:4], torch.tensor(golden[0]['feat_check']))
    return tensor


@pytest.fixture
def sample(golden):
    sample = Det3DDataSample(metainfo=dict(token='golden', img_shape=[(128, 352)] * 6))
    sample.gt_cameras = [
        InstanceData(**{name: golden[1][f'gt.cam{i}.{key}'] for name, key in (
            ('bboxes', 'bboxes'), ('labels', 'labels'), ('centers_2d', 'centers2d'), ('depths', 'depths'))})
        for i in range(6)
    ]
    return sample


@pytest.mark.parametrize('case', range(3))
def test_assignment(golden_folder, case):
    """The 2D cases of assign_decode, whose images have 128x352 pixels."""
    arrays = np.load(golden_folder / 'assign_decode.npz')
    boxes, logits, centres, true_boxes, true_centres, labels, gt_inds, cost = (
        torch.from_numpy(arrays[f'h2d.{case}.{key}'])
        for key in ('pred_cxcywh', 'logits', 'pred_centers', 'gt_xyxy', 'gt_centers', 'gt_labels', 'gt_inds', 'cost'))
    scale = torch.tensor([352.0, 128])
    predictions = InstanceData(scores=logits, bboxes=bbox_cxcywh_to_xyxy(boxes) * scale.repeat(2), codes=centres)
    truth = InstanceData(labels=labels, bboxes=true_boxes, codes=true_centres / scale)
    assigner, meta = MODELS.build(FOCAL).assigner, dict(img_shape=(128, 352))
    assert torch.equal(assigner.assign(predictions, truth, meta).gt_inds, gt_inds)
    total = sum(part(predictions, truth, meta) for part in assigner.match_costs)
    torch.testing.assert_close(total, cost, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_predictions(golden, head, features, sample, mode):
    arrays = golden[1]
    with torch.no_grad():
        predictions = head.train(mode == 'train')(features, [sample.metainfo])
    for actual, key in ((predictions.logits, 'enc_cls_scores'), (predictions.boxes, 'enc_bbox_preds'),
                        (predictions.centres, 'pred_centers2d'), (predictions.centerness[..., None], 'centerness')):
        torch.testing.assert_close(actual, arrays[key], atol=1e-4, rtol=0)
    assert torch.equal(predictions.tokens, arrays[f'{mode}.topk_indexes'][..., 0])


def test_losses(golden, head, features, sample, monkeypatch):
    info, arrays = golden
    solved, solve = [], focal_head.solve
    monkeypatch.setattr(focal_head, 'solve', lambda *args: solved.append(solve(*args)) or solved[-1])
    losses = head.loss(head(features, [sample.metainfo]), [sample])
    cells, objects = solved[0]
    objects = torch.cat([torch.arange(len(truth)) for truth in sample.gt_cameras])[objects]
    gt_inds = torch.zeros_like(arrays['assigned_gt_inds'])
    gt_inds.view(-1)[cells] = objects + 1
    assert torch.equal(gt_inds, arrays['assigned_gt_inds'])
    heat = torch.stack([head._heat_map(truth, (128, 352)) for truth in sample.gt_cameras])
    torch.testing.assert_close(heat, arrays['heatmaps'], atol=1e-6, rtol=0)
    assert set(losses) == set(info['losses'])
    for name, value in info['losses'].items():
        assert losses[name].item() == pytest.approx(value, rel=1e-3), name
    sum(losses.values()).backward()
    parameters = dict(head.named_parameters())
    assert set(parameters) == set(info['grad_norm_names'])
    for name, norm in zip(info['grad_norm_names'], arrays['grad_norm']):
        assert parameters[name].grad.norm() == pytest.approx(norm.item(), rel=1e-3), name
