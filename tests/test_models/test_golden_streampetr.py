"""Parity with StreamPETR: golden numbers streampetr, tolerances of tests/golden/README.md."""
import json

import numpy as np
import pytest
import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from model_factory import RECIPE, seeded

from georope.models import streampetr_head
from georope.models.box_code import to_lidar_boxes
from georope.registry import MODELS

# Per frame: the references' poses are float32 where their memory is moved, ours float64.
LOGITS, BOXES = (1e-4, 1e-3, 1e-3, 1e-4), (1e-3, 1e-2, 1e-2, 1e-3)
METRES = 1e-3  # of memory points; float32 steps 1 km from the origin are 6e-5


@pytest.fixture(scope='module')
def golden(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'streampetr.npz').items()}
    return json.loads((golden_folder / 'streampetr.json').read_text()), arrays


def build(golden, **options):
    config = dict(RECIPE, type='georope.StreamPETRHead', num_query=40, memory_len=64, topk_proposals=16,
                  num_propagated=16, decoder=dict(dropout=0.0), code_weights=[2.0, 2.0] + [1.0] * 8, compat=True)
    head = MODELS.build(config | options)
    state = {name: seeded(name, shape, rule) for name, shape, rule in golden[0]['state'] if rule != 'fixed'}
    for name in list(state):
        for branch in ('cls_branches', 'reg_branches'):
            if name.startswith(f'{branch}.0.'):
                state |= {name.replace('.0.', f'.{i}.', 1): state[name] for i in range(1, 6)}
    head.load_state_dict(state)  # strict: the names are those of the released checkpoints
    return head.eval()


def features(golden, t):
    tensor = seeded(f'streampetr.img_feats.frame{t}', (1, 6, 256, 8, 22), 'normal*1')
    assert torch.equal(tensor.flatten()[:4], torch.tensor(golden[0]['feat_check'][f'frame{t}']))
    return tensor


def frame(golden, t, prev_exists=None, boxes=None, labels=None, **meta):
    arrays = golden[1]
    prev_exists = bool(arrays['eval.prev_exists'][t]) if prev_exists is None else prev_exists
    sample = Det3DDataSample()
    sample.set_metainfo(dict(
        token=f'golden-{t}', lidar2img=arrays['lidar2img'][0].numpy(), cam2img=arrays['intrinsics'][0].numpy(),
        img_shape=[(128, 352)] * 6, ego_pose=arrays['ego_pose'][t].double().numpy(), scene_token='scene',
        timestamp=arrays['timestamp_f64'][t].item(), prev_exists=prev_exists) | meta)
    if boxes is not None:
        sample.gt_instances_3d = InstanceData(bboxes_3d=to_lidar_boxes(boxes.clone()), labels_3d=labels)
    return sample


def close(actual, expected, atol, rtol=0):
    torch.testing.assert_close(actual.detach().squeeze().to(expected.dtype), expected.squeeze(), atol=atol, rtol=rtol)


class Spy:
    """What enters the decoder, what the memory gives, and what losses are made of."""

    def __init__(self, head, monkeypatch):
        self.head = head
        make, get = head._make_queries, head.memory.get
        monkeypatch.setattr(head, '_make_queries', lambda *args: self.set('queries', make(*args)))
        monkeypatch.setattr(head.memory, 'get', lambda *args: self.set('entries', get(*args)))
        by_feat = head.loss_by_feat
        monkeypatch.setattr(head, 'loss_by_feat', lambda results, targets, noisy: (
            self.set('results', results), self.set('noisy', noisy), by_feat(results, targets, noisy))[-1])

    def set(self, name, value):
        setattr(self, name, value)
        return value

    def check_memory(self, arrays, key, atol):
        entries, kept = self.entries, self.head.memory._kept
        # The reference keeps times negative.
        for state, moment, sign in ((entries, f'{key}.mem_pre', 1), (kept, f'{key}.mem_post', -1)):
            close(sign * state.times, arrays[f'{moment}.timestamp'], 1e-6)
            close(state.points, arrays[f'{moment}.reference_point'], max(atol, METRES))
            close(state.velocity, arrays[f'{moment}.velo'], atol)
            close(state.poses, arrays[f'{moment}.egopose'], METRES)
        close(kept.embedding[:, :24], arrays[f'{key}.mem_post.embedding'], atol)


def test_eval(golden, monkeypatch):
    arrays, head = golden[1], build(golden)
    spy = Spy(head, monkeypatch)
    for t in range(4):
        with torch.no_grad():
            results = head(features(golden, t), [frame(golden, t).metainfo])
        key = f'eval.f{t}'
        queries = spy.queries
        close(queries.content, arrays[f'{key}.tgt'], LOGITS[t])
        close(queries.position, arrays[f'{key}.query_pos'], LOGITS[t])
        close(queries.reference, arrays[f'{key}.reference_points'], LOGITS[t])
        close(queries.temporal[:, ::4], arrays[f'{key}.temp_memory'], LOGITS[t])
        close(queries.temporal_pos[:, ::4], arrays[f'{key}.temp_pos'], LOGITS[t])
        close(results['logits'][-1], arrays[f'{key}.cls_last'], LOGITS[t])
        close(results['codes'][-1], arrays[f'{key}.box_last'], BOXES[t])
        if f'{key}.cls_all' in arrays:
            close(results['logits'], arrays[f'{key}.cls_all'], LOGITS[t])
            close(results['codes'], arrays[f'{key}.box_all'], BOXES[t])
        spy.check_memory(arrays, key, BOXES[t])
        best = results['logits'][-1].sigmoid().amax(-1).topk(16, dim=1).indices
        assert torch.equal(best, arrays[f'{key}.mem_topk_indexes'])
        (boxes, scores, labels), = head.bbox_coder.decode(arrays[f'{key}.cls_last'], arrays[f'{key}.box_last'])
        close(to_lidar_boxes(boxes).tensor, arrays[f'{key}.dec_boxes'], 1e-5)
        close(scores, arrays[f'{key}.dec_scores'], 1e-6)
        assert torch.equal(labels, arrays[f'{key}.dec_labels'])


@pytest.mark.parametrize('way', ['reset', 'slot', 'scene', 'switch'])
def test_a_cleared_memory_is_a_scene_start(golden, way):
    head = build(golden)
    with torch.no_grad():
        head(features(golden, 2), [frame(golden, 2).metainfo])
        change = dict()
        if way == 'reset':
            head.memory.reset()
        elif way == 'slot':
            head.memory.reset([0])
        elif way == 'switch':
            head.train().eval()
        else:
            change = dict(scene_token='another')
        results = head(features(golden, 3), [frame(golden, 3, prev_exists=True, **change).metainfo])
    close(results['logits'][-1], golden[1]['eval.f3.cls_last'], LOGITS[3])
    close(results['codes'][-1], golden[1]['eval.f3.box_last'], BOXES[3])


def test_lanes_change_scene_at_different_times(golden):
    """A batch whose items start anew in different frames gives each what it gives alone."""
    arrays, head = golden[1], build(golden)
    order = ((0, 1, 2), (3, 0, 1))  # slot 1 is one frame behind
    for first, second in zip(*order):
        with torch.no_grad():
            results = head(torch.cat((features(golden, first), features(golden, second))),
                           [frame(golden, first).metainfo, frame(golden, second).metainfo])
        for slot, t in enumerate((first, second)):
            close(results['logits'][-1, slot], arrays[f'eval.f{t}.cls_last'], LOGITS[t])
            close(results['codes'][-1, slot], arrays[f'eval.f{t}.box_last'], BOXES[t])


def test_right_focal_lengths(golden, monkeypatch):
    """Quirk 1 alone off."""
    head = build(golden)
    monkeypatch.setattr(
        head, '_focal_lengths', lambda metas, *args: MODELS.build(RECIPE)._focal_lengths(metas, *args))
    for t in range(3):
        with torch.no_grad():
            results = head(features(golden, t), [frame(golden, t).metainfo])
        close(results['logits'][-1], golden[1][f'fixedintr.f{t}.cls_last'], LOGITS[t])
        close(results['codes'][-1], golden[1][f'fixedintr.f{t}.box_last'], BOXES[t])


@pytest.mark.parametrize('case', ['train', 'train_empty'])
def test_training(golden, monkeypatch, case):
    info, arrays = golden
    head = build(golden, denoising=dict()).train()
    spy = Spy(head, monkeypatch)
    for t in range(2):
        key = f'{case}.f{t}'
        sample = frame(golden, t, boxes=arrays[f'{key}.gt_center'], labels=arrays[f'{key}.gt_labels'])
        noise = arrays.get(f'{key}.dn_noise_u01', torch.zeros(0, 3))
        monkeypatch.setattr(head.denoising, 'sample_noise', lambda num, device, noise=noise: noise)
        losses = head.loss(features(golden, t), [sample])
        results, noisy = spy.results, spy.noisy

        close(results['logits'][-1], arrays[f'{key}.cls_last'], LOGITS[t])
        close(results['codes'][-1], arrays[f'{key}.box_last'], BOXES[t])
        close(head.memory._kept.points, arrays[f'{key}.mem_post.reference_point'], BOXES[1])
        expected = info['losses'][key]
        if len(arrays[f'{key}.gt_labels']):
            assert torch.equal(spy.queries.mask, arrays[f'{key}.attn_mask'].bool())
            close(spy.queries.reference[:, :-16], arrays[f'{key}.padded_reference_points'], 1e-6)
            assert torch.equal(noisy.labels, arrays[f'{key}.dn_known_labels'])
            close(results['dn_logits'][-1], arrays[f'{key}.dn_cls_last'], LOGITS[t])
            close(results['dn_codes'][-1], arrays[f'{key}.dn_box_last'], BOXES[t])
            assert set(losses) == set(expected)
        for name, value in losses.items():
            # Without objects the reference repeats its main losses, detached, under the names of the denoising ones.
            target = 0 if 'dn_' in name and not len(arrays[f'{key}.gt_labels']) else expected[name]
            assert value.item() == pytest.approx(target, rel=1e-3), name

        head.zero_grad()
        sum(losses.values()).backward()
        gradients = {name: parameter.grad.norm() for name, parameter in head.named_parameters()
                     if parameter.requires_grad}
        for name, norm in zip(info['grad_norm_names'][key], arrays[f'{key}.grad_norm']):
            if norm >= 0.05:
                assert gradients.pop(name) == pytest.approx(norm.item(), rel=1e-2), name


def test_motion_is_float64_up_to_its_sines(golden, monkeypatch):
    """Unix seconds and poses 1 km away, in float32, would be off by 128 s and 6e-5 m."""
    arrays, head = golden[1], build(golden)
    embedded, embed = [], streampetr_head.nerf_embedding
    monkeypatch.setattr(streampetr_head, 'nerf_embedding', lambda x: embed(embedded.append(x) or x))
    with torch.no_grad():
        for t in range(2):
            head(features(golden, t), [frame(golden, t).metainfo])
    pose = [arrays['ego_pose'][t].double() for t in range(2)]
    step = (arrays['timestamp_f64'][1] - arrays['timestamp_f64'][0]).float()
    motion = embedded[2][0, :16]
    assert (motion[:, 2] == step).all()
    assert torch.equal(motion[:, 3:], (torch.linalg.inv(pose[1]) @ pose[0])[:3].flatten().float().expand(16, -1))
