"""Released weights of the StreamPETR repository, converted, give the recorded outputs: petr_dn, streampetr, focal_head.

The weights are the fixtures' seeded ones under the names of the releases, constants and shared branches included.
"""
import json

import numpy as np
import pytest
import torch
from mmdet3d.structures import Det3DDataSample
from model_factory import FOCAL, PC_RANGE, POSITION_RANGE, RECIPE, seeded
from torch import nn

from georope.models.conversion import convert
from georope.registry import MODELS

CONSTANTS = ['code_weights', 'match_costs', 'pc_range', 'position_range', 'coords_d']


@pytest.fixture
def fixtures(golden_folder):
    return lambda name: (json.loads((golden_folder / f'{name}.json').read_text()),
                         {k: torch.from_numpy(v) for k, v in np.load(golden_folder / f'{name}.npz').items()})


def released(info, prefix='pts_bbox_head.'):
    """The tensors of a release, as its names list them."""
    index = np.arange(64, dtype=np.float32)
    code_weights = info['head_cfg'].get('code_weights')
    fixed = dict(code_weights=code_weights, match_costs=code_weights, pc_range=PC_RANGE, position_range=POSITION_RANGE,
                 coords_d=1 + (61.2 - 1) / (64 * 65) * index * (index + 1))
    weights = {}
    for name, shape, rule in info['state']:
        value = torch.as_tensor(fixed[name]) if rule == 'fixed' else seeded(name, shape, rule)
        for layer in range(6 if '_branches.0.' in name else 1):
            weights[prefix + name.replace('_branches.0.', f'_branches.{layer}.')] = value
    return weights


def build(info, **options):
    cfg = info['head_cfg']
    return MODELS.build(RECIPE | dict(num_query=cfg['num_query'], decoder=dict(dropout=0.0), compat=True,
                                      code_weights=cfg['code_weights']) | options)


def close(actual, expected, atol):
    torch.testing.assert_close(actual.detach().squeeze(), expected.squeeze(), atol=atol, rtol=0)


def test_petr(fixtures):
    info, arrays = fixtures('petr_dn')
    model = nn.ModuleDict(dict(pts_bbox_head=build(info))).eval()
    result = convert(released(info), model)
    assert (result.layout, result.era) == ('stream', 'mmdet3d-1.x')
    assert list(result.left) == [f'pts_bbox_head.{name}' for name in CONSTANTS[2:] + CONSTANTS[:2]]
    assert not (result.converted or result.missing or result.notes)
    model.load_state_dict(result.state_dict)
    with torch.no_grad():
        outputs = model['pts_bbox_head'](
            seeded('petr_dn.img_feats', (2, 6, 256, 8, 22), 'normal*1')[:1],
            [dict(lidar2img=arrays['lidar2img'][0].numpy(), cam2img=arrays['intrinsics'][0].numpy(),
                  img_shape=[(128, 352)] * 6)])
    close(outputs['logits'], arrays['eval.all_cls_scores'], 1e-4)
    close(outputs['codes'], arrays['eval.all_bbox_preds'], 1e-3)


def test_streampetr_with_2d_head(fixtures):
    (info, arrays), (focal_info, focal_arrays) = fixtures('streampetr'), fixtures('focal_head')
    sizes = {key: info['head_cfg'][key] for key in ('memory_len', 'topk_proposals', 'num_propagated')}
    model = nn.ModuleDict(dict(
        pts_bbox_head=build(info, type='georope.StreamPETRHead', **sizes),
        img_roi_head=MODELS.build(FOCAL | dict(train_ratio=0.5, infer_ratio=0.25)))).eval()
    result = convert(released(info) | released(focal_info, 'img_roi_head.'), model)
    assert len(result.left) == 5 and not (result.converted or result.missing)
    model.load_state_dict(result.state_dict)

    def meta(t):
        return dict(token=str(t), lidar2img=arrays['lidar2img'][0].numpy(), cam2img=arrays['intrinsics'][0].numpy(),
                    img_shape=[(128, 352)] * 6, ego_pose=arrays['ego_pose'][t].double().numpy(), scene_token='scene',
                    timestamp=arrays['timestamp_f64'][t].item(), prev_exists=bool(arrays['eval.prev_exists'][t]))

    for t, tolerance in enumerate((1e-4, 1e-3)):
        with torch.no_grad():
            outputs = model['pts_bbox_head'](
                seeded(f'streampetr.img_feats.frame{t}', (1, 6, 256, 8, 22), 'normal*1'), [meta(t)])
        close(outputs['logits'][-1], arrays[f'eval.f{t}.cls_last'], tolerance)
        close(outputs['codes'][-1], arrays[f'eval.f{t}.box_last'], 10 * tolerance)
    with torch.no_grad():
        predictions = model['img_roi_head'](seeded('focal_head.img_feats', (1, 6, 256, 8, 22), 'normal*1'),
                                            [Det3DDataSample(metainfo=meta(0)).metainfo])
    torch.testing.assert_close(predictions.logits, focal_arrays['enc_cls_scores'], atol=1e-4, rtol=0)
    torch.testing.assert_close(predictions.boxes, focal_arrays['enc_bbox_preds'], atol=1e-4, rtol=0)
