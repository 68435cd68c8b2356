import math

import pytest
import torch
from model_factory import UROPE, features, metas, stream_sample, tiny_head

from georope.models import streampetr_head

POSITIONS = {
    'embedding': dict(),
    'hybrid': dict(encoding=UROPE),
    'replace': dict(encoding=UROPE, position_embedding=False),
    'worldrope and self-attention': dict(encoding=dict(type='georope.WorldRoPE'), position_embedding=False,
                                         self_encoding=dict(type='georope.RoPE3D'))
}
positions = pytest.mark.parametrize('options', POSITIONS.values(), ids=POSITIONS)


def stream_head(**options):
    return tiny_head(**dict(type='georope.StreamPETRHead', memory_len=12, topk_proposals=4, num_propagated=4) | options)


def run(head, tensor, data_samples):
    with torch.no_grad():
        return head(tensor, metas(data_samples))


def close(actual, expected, atol=2e-4):
    for key in ('logits', 'codes'):
        torch.testing.assert_close(actual[key], expected[key], atol=atol, rtol=0, msg=lambda m, key=key: f'{key}: {m}')


@positions
@pytest.mark.parametrize('compat', [False, True])
def test_lanes_are_what_they_are_alone(options, compat):
    """A batch whose slots start anew in different frames, with other calibrations and ages."""
    head = stream_head(compat=compat, **options).eval()
    slots = [[stream_sample('a', i, seed=1) for i in (0, 1, 2, 3)],
             [*(stream_sample('b', i, seed=2) for i in (5, 6)), *(stream_sample('c', i, seed=3) for i in (0, 1))]]
    slots[1][0].set_metainfo(dict(prev_exists=False))
    tensors = [features(2, seed=i) for i in range(4)]
    together = [run(head, tensor, pair) for tensor, *pair in zip(tensors, *slots)]
    for i, slot in enumerate(slots):
        head.memory.reset()
        for t, data_sample in enumerate(slot):
            alone = run(head, tensors[t][i:i + 1], [data_sample])
            close({key: together[t][key][:, i:i + 1] for key in ('logits', 'codes')}, alone)


def test_denoising_ignores_the_object_counts_of_others():
    """With memory and unequal counts, a slot's denoising and other queries are what they are alone."""
    head = stream_head(denoising=dict(groups=3, noise_scale=0)).train()
    seen, by_feat = {}, head.loss_by_feat
    head.loss_by_feat = lambda *args: seen.update(args[0], noisy=args[2]) or by_feat(*args)

    def train(slots):
        head.memory.reset()
        for t in range(2):
            batch = [stream_sample(f'{i}', t, num_boxes=(4, 1)[i], seed=i) for i in slots]
            head.loss(torch.cat([features(seed=10 * t + i) for i in slots]), batch)
        return dict(seen)

    together = train((0, 1))
    for i in range(2):
        alone = train((i, ))
        own = together['noisy'].sample == i
        for key in ('dn_logits', 'dn_codes'):
            torch.testing.assert_close(together[key][:, own], alone[key], atol=2e-4, rtol=0)
        close({key: together[key][:, i:i + 1] for key in ('logits', 'codes')}, alone)


def test_nothing_is_seen_in_empty_slots():
    """By default; with ``compat`` they take part, as in the reference."""
    for compat in (False, True):
        head = stream_head(compat=compat).eval()
        padding = []
        layer = head.transformer['decoder'].layers[0]
        layer.register_forward_pre_hook(lambda module, args, padding=padding: padding.append(args[2].query_padding))
        for frame in range(4):
            run(head, features(), [stream_sample(frame=frame)])
        if compat:
            assert padding == [None] * 4
        else:  # 12 entries, 4 of them queries: 8 further keys behind 16 queries
            assert [p[0, 16:].sum().item() for p in padding[:2]] == [8, 4] and not padding[0][:, :16].any()
            assert padding[2:] == [None] * 2


def test_self_attention_rotates_memory_points_of_the_current_frame():
    head = stream_head(**POSITIONS['worldrope and self-attention']).eval()
    run(head, features(), [stream_sample(frame=0)])
    seen = []
    rotate = head.self_encoding.rotate_queries
    head.self_encoding.rotate_queries = lambda points, times: (seen.append((points, times)), rotate(points, times))[1]
    get, entries = head.memory.get, []
    head.memory.get = lambda *args: entries.append(get(*args)) or entries[0]
    run(head, features(), [stream_sample(frame=1)])
    (points, times), (key_points, key_times) = seen
    lower, upper = head.pc_range.chunk(2)
    learned = head.reference_points.weight * (upper - lower) + lower
    assert points.shape == (1, 16, 3) and key_points.shape == (1, 24, 3)
    torch.testing.assert_close(key_points[0], torch.cat((learned, entries[0].points[0].float())), atol=1e-4, rtol=0)
    assert torch.equal(points, key_points[:, :16]) and torch.equal(times, key_times[:, :16])
    assert key_times[0].tolist() == [0.0] * 12 + [-0.5] * 12


@pytest.mark.parametrize('compat', [False, True])
def test_velocity_turns_into_the_current_frame(compat, monkeypatch):
    head = stream_head(compat=compat).eval()
    seen = []
    embed = streampetr_head.nerf_embedding
    monkeypatch.setattr(streampetr_head, 'nerf_embedding', lambda x: seen.append(x) or embed(x))
    run(head, features(), [stream_sample(frame=0)])
    velocity = head.memory._kept.velocity[0, :4]
    run(head, features(), [stream_sample(frame=1)])
    turned = torch.view_as_real(torch.view_as_complex(velocity) * complex(math.cos(0.1), -math.sin(0.1)))
    torch.testing.assert_close(seen[2][0, :4, :2], velocity if compat else turned)


def test_the_best_predictions_are_remembered():
    head = stream_head().eval()
    results = run(head, features(), [stream_sample()])
    scores = results['logits'][-1, 0].sigmoid().amax(-1)
    best = scores.argsort(descending=True)[:4]
    entries = head.memory._kept
    pose = torch.from_numpy(stream_sample().ego_pose)
    torch.testing.assert_close(entries.points[0, :4], results['codes'][-1, 0, best, :3].double() @ pose[:3, :3].T
                               + pose[:3, 3])
    assert torch.equal(entries.embedding[0, :4], results['embeddings'][-1, 0, best])
    assert torch.equal(entries.velocity[0, :4], results['codes'][-1, 0, best, 8:])
    assert results['logits'].shape[2] == 16  # propagated queries predict as well


@pytest.mark.parametrize('denoising', [None, dict(groups=3)])
@pytest.mark.parametrize('checkpointing', [False, True])
@positions
def test_losses_and_gradients(options, checkpointing, denoising):
    """Finite, no parameter without gradient (DDP without find_unused_parameters), frames without objects too."""
    head = stream_head(denoising=denoising, **options).train()
    head.transformer['decoder'].with_cp = checkpointing
    for frame, counts in enumerate(((3, 0), (0, 0), (2, 20))):
        head.zero_grad()
        batch = [stream_sample(str(i), frame, count, seed=i) for i, count in enumerate(counts)]
        losses = head.loss(features(2), batch)
        assert all(loss.isfinite() for loss in losses.values())
        assert ('dn_loss_cls' in losses) == (denoising is not None)
        sum(losses.values()).backward()
        missing = [name for name, p in head.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert missing == ['pseudo_reference_points.weight']
    assert not head.pseudo_reference_points.weight.requires_grad


def test_nan_does_not_outlive_a_scene():
    head = stream_head().eval()
    with pytest.raises(FloatingPointError, match="'s-0'"):
        head.predict(features() * torch.nan, [stream_sample(frame=0)])
    with pytest.raises(FloatingPointError, match="'s-1'"):  # still there, and not hidden
        head.predict(features(), [stream_sample(frame=1)])
    after = head.predict(features(), [stream_sample('t')])[0]
    alone = stream_head().eval().predict(features(), [stream_sample('t')])[0]
    assert torch.equal(after.bboxes_3d.tensor, alone.bboxes_3d.tensor)


def test_switches_forget():
    head = stream_head().eval()
    first = run(head, features(), [stream_sample(frame=0)])
    second = run(head, features(), [stream_sample(frame=1)])
    head.train()
    head.eval()
    assert not torch.equal(second['codes'], first['codes'])
    fresh = run(head, features(), [stream_sample(frame=1)])
    head.eval()  # no switch
    kept = run(head, features(), [stream_sample(frame=2)])
    other = stream_head().eval()
    close(fresh, run(other, features(), [stream_sample(frame=1)]), 0)
    close(kept, run(other, features(), [stream_sample(frame=2)]), 0)
    assert not [name for name in head.state_dict() if 'memory.' in name and not name.startswith('ego_pose_memory')]


@positions
def test_autocast_leaves_poses_and_times_alone(options, monkeypatch):
    """Under bfloat16 motion, ages, memory points and phases are bit-equal to float32's."""
    results, seen, heads = [], [], [stream_head(**options).train() for _ in range(2)]
    embed, sine = streampetr_head.nerf_embedding, streampetr_head.sine_embedding
    monkeypatch.setattr(streampetr_head, 'nerf_embedding', lambda x: seen[-1].append(x) or embed(x))
    monkeypatch.setattr(streampetr_head, 'sine_embedding', lambda x, channels: seen[-1].append(x) or sine(x, channels))
    for head, enabled in zip(heads, (False, True)):
        seen.append([])
        run(head, features(), [stream_sample(frame=0)])
        rotate = head.encoding.rotate_queries
        rotate_self = head.self_encoding.rotate_queries
        head.self_encoding.rotate_queries = lambda *args: (seen[-1].extend(args), rotate_self(*args))[1]  # noqa: B023
        seen[-1].clear()
        head.encoding.rotate_queries = lambda points: (seen[-1].append(points), rotate(points))[1]  # noqa: B023
        torch.manual_seed(0)
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            losses = head.loss(features(seed=1), [stream_sample(frame=1)])
        sum(losses.values()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())
        results.append(losses)
    assert len(seen[0]) == 9 and all(torch.equal(a, b) for a, b in zip(*seen))
    assert all(x.dtype in (torch.float32, torch.float64) for x in seen[1])
    for name, loss in results[1].items():
        assert loss.dtype == torch.float32 and loss.item() == pytest.approx(results[0][name].item(), rel=0.25)
    assert any(results[0][name] != results[1][name] for name in results[0])


@pytest.mark.parametrize('options', [dict(memory_len=10), dict(num_propagated=0), dict(num_propagated=13),
                                     dict(topk_proposals=17, memory_len=34)])
def test_sizes_that_do_not_fit(options):
    with pytest.raises(ValueError, match='memory_len'):
        stream_head(**options)
