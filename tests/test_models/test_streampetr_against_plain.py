"""Parity with StreamPETR beyond the fixtures: batches, unequal object counts, empty frames, windows, chosen tokens.

The measure is a plain re-computation, which the first test holds against the fixture itself.
"""
import json

import numpy as np
import pytest
import test_golden_streampetr as golden
import torch
from model_factory import features, metas, stream_sample, tiny_head, tiny_streampetr
from plain_streampetr import PlainStreamPETR

WEIGHTS = [2.0, 2.0] + [1.0] * 8
HEAD = dict(memory_len=12, topk_proposals=4, num_propagated=4, denoising=dict(groups=3), code_weights=WEIGHTS,
            compat=True)


def slot(*frames):
    """Frames (scene, number, objects) of one stream slot; a scene's first one is not continued."""
    return [stream_sample(scene, number, count, seed=10 * number + ord(scene),
                          prev_exists=i > 0 and frames[i - 1][0] == scene)
            for i, (scene, number, count) in enumerate(frames)]


SLOTS = (slot(('a', 0, 3), ('a', 1, 0), ('a', 2, 7), ('a', 3, 20), ('a', 4, 2)),
         slot(('b', 3, 1), ('b', 4, 0), ('c', 0, 0), ('c', 1, 5), ('c', 2, 0)),
         slot(('d', 0, 2), ('e', 7, 0), ('e', 8, 4), ('f', 0, 1), ('f', 1, 1)))


def stack(samples, key):
    return torch.from_numpy(np.stack([sample.metainfo[key] for sample in samples])).double()


def plain_step(plain, tensor, samples, **options):
    continued = torch.tensor([sample.prev_exists for sample in samples]).double()
    return plain.forward(tensor, stack(samples, 'lidar2img'), stack(samples, 'cam2img'), stack(samples, 'ego_pose'),
                         stack(samples, 'timestamp'), continued, **options)


def truth_of(samples):
    boxes = [sample.gt_instances_3d.bboxes_3d for sample in samples]
    return [(torch.cat((own.gravity_center, own.tensor[:, 3:]), 1), sample.gt_instances_3d.labels_3d)
            for own, sample in zip(boxes, samples)]


def close(actual, expected, name, atol=1e-4):
    torch.testing.assert_close(actual.detach().double(), expected.detach(), atol=atol, rtol=1e-4,
                               msg=lambda m: f'{name}: {m}')


def check(head, results, plain, expected, entries):
    for name in ('logits', 'codes', 'dn_logits', 'dn_codes'):
        assert (name in expected) == (name in results and results[name].numel() > 0)
        if name in expected:
            close(results[name], expected[name], name)
    kept = head.memory._kept
    for name, ours in dict(embedding='embedding', point='points', velocity='velocity', pose='poses').items():
        close(getattr(entries, ours), expected['before'][name], name)
        close(getattr(kept, ours), plain.memory[name], name)
    close(entries.times, expected['before']['time'], 'age', 1e-9)
    close(-kept.times, plain.memory['time'], 'time', 1e-9)


def watch(monkeypatch, head):
    seen, get, by_feat = {}, head.memory.get, head.loss_by_feat
    monkeypatch.setattr(head.memory, 'get', lambda *args: seen.update(entries=get(*args)) or seen['entries'])
    monkeypatch.setattr(head, 'loss_by_feat', lambda results, *args: (
        seen.update(results=results), by_feat(results, *args))[1])
    return seen


def test_the_plain_one_gives_the_fixture(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'streampetr.npz').items()}
    info = json.loads((golden_folder / 'streampetr.json').read_text())
    plain = PlainStreamPETR(golden.build((info, arrays), denoising=dict()))
    for t in range(2):
        key = f'train.f{t}'
        sample = golden.frame((info, arrays), t, boxes=arrays[f'{key}.gt_center'], labels=arrays[f'{key}.gt_labels'])
        results = plain_step(plain, golden.features((info, arrays), t), [sample], truth=truth_of([sample]),
                             noise=arrays[f'{key}.dn_noise_u01'])
        for name, expected in (('logits', 'cls'), ('codes', 'box'), ('dn_logits', 'dn_cls'), ('dn_codes', 'dn_box')):
            atol = (1e-4, 1e-3)[t] * (10 if 'codes' in name else 1)
            close(results[name][-1].squeeze(0), arrays[f'{key}.{expected}_last'].squeeze(0).double(), name, atol)
        losses = plain.losses(results, truth_of([sample]))
        assert set(losses) == set(info['losses'][key])
        for name, loss in losses.items():
            assert loss.item() == pytest.approx(info['losses'][key][name], rel=1e-3), name


@pytest.mark.parametrize('sizes', [(12, 4, 4), (16, 4, 8), (12, 6, 4), (12, 4, 12)])
def test_lanes_change_scene_at_different_times(sizes, monkeypatch):
    """Also where more, or fewer, objects are propagated than a frame adds to the memory."""
    head = tiny_head(type='georope.StreamPETRHead', **HEAD | dict(
        zip(('memory_len', 'topk_proposals', 'num_propagated'), sizes))).eval()
    plain, seen = PlainStreamPETR(head), watch(monkeypatch, head)
    for t, samples in enumerate(zip(*SLOTS)):
        tensor = features(3, seed=t)
        with torch.no_grad():
            results = head(tensor, metas(samples))
        check(head, results, plain, plain_step(plain, tensor, samples), seen['entries'])


@pytest.mark.parametrize('tokens', [None, 15])
def test_training_with_unequal_object_counts(tokens, monkeypatch):
    """Empty denoising queries are seen by their group, as in the reference; one slot, or all, without objects."""
    head = tiny_head(type='georope.StreamPETRHead', **HEAD).train()
    plain, seen = PlainStreamPETR(head), watch(monkeypatch, head)
    generator = torch.Generator().manual_seed(0)
    for t, samples in enumerate(zip(*SLOTS)):
        tensor, truth = features(3, seed=t), truth_of(samples)
        chosen = tokens and torch.rand(3, 48, generator=generator).argsort(1)[:, :tokens]
        noise = torch.rand(3 * sum(len(labels) for _, labels in truth), 3, generator=generator)
        monkeypatch.setattr(head.denoising, 'sample_noise', lambda num, device, noise=noise: noise)
        losses = head.loss(tensor, samples, chosen)
        expected = plain_step(plain, tensor, samples, chosen=chosen, truth=truth, noise=noise)
        check(head, seen['results'], plain, expected, seen['entries'])
        for name, loss in plain.losses(expected, truth).items():
            assert losses.pop(name).item() == pytest.approx(loss.item(), rel=1e-4), name
        assert not any(losses.values())  # those of denoising without objects


@pytest.mark.parametrize('with_losses, head_grads, backbone_grads', [(2, 3, 2), (3, 3, 1), (2, 2, 4)])
def test_windows(with_losses, head_grads, backbone_grads):
    """Losses of the last frames and their gradients; a slot starts anew in mid window."""
    model = tiny_streampetr(head=HEAD | dict(encoding=None), num_frame_losses=with_losses,
                            num_frame_head_grads=head_grads, num_frame_backbone_grads=backbone_grads)
    head, slots = model.pts_bbox_head, SLOTS[:2]
    length, samples = len(slots[0]), [frames[-1].clone() for frames in slots]
    for sample, frames in zip(samples, slots):
        sample.frames = frames
    truth = [truth_of(of_frame) for of_frame in zip(*slots)]
    generator = torch.Generator().manual_seed(0)
    imgs = torch.randn(2, length, 2, 3, 64, 96, generator=generator)
    noise = {t: torch.rand(3 * sum(len(labels) for _, labels in truth[t]), 3, generator=generator)
             for t in range(length - with_losses, length)}
    waiting = iter(noise.values())
    head.denoising.sample_noise = lambda num, device: next(waiting)
    losses = model(dict(imgs=imgs), samples, mode='loss')
    losses = {name: loss for name, loss in losses.items() if 'enc_' not in name and '_losses' not in name}
    sum(losses.values()).backward()

    plain = PlainStreamPETR(head)
    with torch.no_grad():
        tensors = model.extract_feat(dict(imgs=imgs.flatten(1, 2))).unflatten(1, (length, 2))
    for name, weight in plain.weights.items():
        weight.requires_grad_(not name.startswith('pseudo'))
    total = 0
    for t, of_frame in enumerate(zip(*slots)):
        if t not in noise:
            with torch.no_grad():
                plain_step(plain, tensors[:, t], of_frame)
            continue
        results = plain_step(plain, tensors[:, t], of_frame, truth=truth[t], noise=noise[t])
        for name, loss in plain.losses(results, truth[t]).items():
            assert losses.pop(f'frame_{t}_{name}').item() == pytest.approx(loss.item(), rel=1e-4), name
            total += loss
    assert not any(losses.values())
    total.backward()
    for name, parameter in head.named_parameters():
        if parameter.requires_grad:
            close(parameter.grad, plain.weights[name].grad, name, atol=1e-4 * parameter.grad.norm().item() + 1e-6)
