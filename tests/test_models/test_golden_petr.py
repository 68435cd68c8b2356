"""Parity with PETR of the StreamPETR repository: golden numbers petr_dn, tolerances of tests/golden/README.md."""
import json

import numpy as np
import pytest
import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from model_factory import RECIPE, seeded

from georope.models.box_code import to_lidar_boxes
from georope.registry import MODELS

LOGITS, BOXES = 1e-4, 1e-3


@pytest.fixture(scope='module')
def golden(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'petr_dn.npz').items()}
    return json.loads((golden_folder / 'petr_dn.json').read_text()), arrays


@pytest.fixture
def head(golden):
    return build(golden)


def build(golden, **options):
    # The fixture is a released model's arithmetic: the reference's known bugs, no dropout.
    config = dict(RECIPE, num_query=50, decoder=dict(dropout=0.0), compat=True) | options
    head = MODELS.build(config)
    state = {name: seeded(name, shape, rule) for name, shape, rule in golden[0]['state'] if rule != 'fixed'}
    for name in list(state):
        for branch in ('cls_branches', 'reg_branches'):
            if name.startswith(f'{branch}.0.'):
                state |= {name.replace('.0.', f'.{i}.', 1): state[name] for i in range(1, 6)}
    head.load_state_dict(state)  # strict: the names are those of the released checkpoints
    return head.eval()


@pytest.fixture
def features(golden):
    tensor = seeded('petr_dn.img_feats', (2, 6, 256, 8, 22), 'normal*1')[:1]
    assert torch.equal(tensor.flatten()[:4], torch.tensor(golden[0]['feat_check']))
    return tensor


@pytest.fixture
def data_sample(golden):
    arrays = golden[1]
    sample = Det3DDataSample()
    sample.set_metainfo(dict(token='golden', lidar2img=arrays['lidar2img'][0].numpy(),
                             cam2img=arrays['intrinsics'][0].numpy(), img_shape=[(128, 352)] * 6))
    sample.gt_instances_3d = InstanceData(
        bboxes_3d=to_lidar_boxes(arrays['gt_center'][::2].clone()), labels_3d=arrays['gt_labels'][::2])
    return sample


def close(actual, expected, atol):
    torch.testing.assert_close(actual.detach().squeeze(), expected.squeeze(), atol=atol, rtol=0)


def test_eval(head, golden, features, data_sample):
    arrays = golden[1]
    seen = {}
    for name in ('position_encoder', 'memory_embed', 'spatial_alignment', 'featurized_pe', 'query_embedding'):
        getattr(head, name).register_forward_hook(
            lambda module, args, output, name=name: seen.update({name: output, name + '.args': args}))
    with torch.no_grad():
        results = head(features, [data_sample.metainfo])
    close(seen['position_encoder.args'][0][:, ::37], arrays['eval.position_encoder_input.tok37'], LOGITS)
    close(seen['spatial_alignment.args'][1], arrays['eval.cone'], 1e-5)
    close(seen['query_embedding'], arrays['eval.query_pos'], LOGITS)
    for name in ('position_encoder', 'memory_embed', 'spatial_alignment', 'featurized_pe'):
        close(seen[name][:, ::37], arrays[f'eval.{name}.tok37'], LOGITS)
    close(results['logits'], arrays['eval.all_cls_scores'], LOGITS)
    close(results['codes'], arrays['eval.all_bbox_preds'], BOXES)


def test_right_focal_lengths(golden, features, data_sample):
    with torch.no_grad():
        results = build(golden, compat=False)(features, [data_sample.metainfo])
    close(results['logits'][-1], golden[1]['fixedintr.cls_last'], LOGITS)
    close(results['codes'][-1], golden[1]['fixedintr.box_last'], BOXES)
    assert (golden[1]['fixedintr.cls_last'] - golden[1]['eval.all_cls_scores'][-1]).abs().max() > 10 * LOGITS


def test_decoded_boxes(head, golden):
    arrays = golden[1]
    (boxes, scores, labels), = head.bbox_coder.decode(arrays['eval.all_cls_scores'][-1],
                                                      arrays['eval.all_bbox_preds'][-1])
    close(to_lidar_boxes(boxes).tensor, arrays['eval.dec_boxes'], 1e-5)
    close(scores, arrays['eval.dec_scores'], 1e-6)
    assert torch.equal(labels, arrays['eval.dec_labels'])


@pytest.mark.parametrize('case', ['train_nodn', 'train_dn'])
def test_training(golden, features, data_sample, case, monkeypatch):
    info, arrays = golden
    head = build(golden, denoising=dict() if case == 'train_dn' else None).train()
    results = {}
    forward = head.forward

    def spy(features, metas, denoising=None, tokens=None):
        results.update(forward(features, metas, denoising), denoising=denoising)
        return {key: value for key, value in results.items() if key != 'denoising'}

    monkeypatch.setattr(head, 'forward', spy)
    if case == 'train_dn':
        monkeypatch.setattr(head.denoising, 'sample_noise', lambda num, device: arrays['train_dn.dn_noise_u01'])
    losses = head.loss(features, [data_sample])

    close(results['logits'][-1], arrays[f'{case}.cls_last'], LOGITS)
    close(results['codes'][-1], arrays[f'{case}.box_last'], BOXES)
    if case == 'train_dn':
        queries = results['denoising']
        points = torch.cat((queries.reference_points, head.reference_points.weight[None]), dim=1)
        close(points, arrays['train_dn.padded_reference_points'], 1e-6)
        assert torch.equal(queries.mask, arrays['train_dn.attn_mask'].bool())
        assert not queries.empty.any()
        assert torch.equal(queries.labels, arrays['train_dn.dn_known_labels'])
        assert torch.equal(queries.sample, arrays['train_dn.dn_batch_idx'])
        assert torch.equal(queries.query, arrays['train_dn.dn_map_index'])
        close(results['dn_logits'][-1], arrays['train_dn.dn_cls_last'], LOGITS)
        close(results['dn_codes'][-1], arrays['train_dn.dn_box_last'], BOXES)

    expected = info['losses'][case]
    assert set(losses) == set(expected)
    for name, value in expected.items():
        assert losses[name].item() == pytest.approx(value, rel=1e-3), name

    sum(losses.values()).backward()
    gradients = {name: parameter.grad.norm() for name, parameter in head.named_parameters()}
    for name, expected in zip(info['grad_norm_names'][case], arrays[f'{case}.grad_norm']):
        if expected >= 0.05:
            assert gradients.pop(name) == pytest.approx(expected.item(), rel=1e-2), name
