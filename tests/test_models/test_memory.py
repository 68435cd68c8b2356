"""The memory alone: stream slots, coordinates, resets."""
import math

import numpy as np
import pytest
import torch

from georope.models.memory import Frames, Memory

START = torch.tensor([[1.0, 2, 3], [4, 5, 6]])


def pose(x=0.0, yaw=0.0):
    matrix = np.eye(4)
    matrix[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    matrix[:2, 3] = (1500 + x, -900)
    return matrix


def meta(time=0.0, prev_exists=True, scene='s', x=0.0, yaw=0.0, **change):
    return dict(token=f'{scene}-{time}', ego_pose=pose(x, yaw), scene_token=scene, timestamp=time,
                prev_exists=prev_exists) | change


def step(memory, *metas, value=1.0, points=(10.0, 0, 0)):
    """get, then update with 2 objects per slot."""
    entries = memory.get(Frames.read(metas, torch.device('cpu')), START, 4)
    batch = len(metas)
    memory.update(torch.full((batch, 2, 4), value), torch.tensor(points).expand(batch, 2, 3),
                  torch.ones(batch, 2, 2))
    return entries


def test_a_scene_start():
    entries = step(Memory(6), meta())
    assert entries.filled == (2, ) and entries.empty.tolist() == [[False] * 2 + [True] * 4]
    assert torch.equal(entries.points[0, :2], START.double()) and not entries.points[0, 2:].any()
    assert torch.equal(entries.poses[0, :2], torch.eye(4).double().expand(2, 4, 4)) and not entries.poses[0, 2:].any()
    assert not entries.embedding.any() and not entries.times.any() and not entries.velocity.any()


def test_objects_stay_where_they_were_seen():
    """A static object 10 m ahead; the vehicle turns left by 90 degrees and drives on; ages are exact."""
    memory = Memory(6)
    step(memory, meta(0.0, False))
    entries = step(memory, meta(0.5, x=4.0, yaw=math.pi / 2))
    torch.testing.assert_close(entries.points[0, 0], torch.tensor([0.0, -6, 0]).double(), atol=1e-9, rtol=0)
    assert entries.times[0].tolist() == [0.5] * 6 and entries.filled == (4, )
    torch.testing.assert_close(entries.poses[0, 0], torch.from_numpy(np.linalg.inv(pose(4, math.pi / 2)) @ pose()))
    assert entries.velocity[0, 0].tolist() == [1, 1]  # as seen
    assert entries.embedding[0, :, 0].tolist() == [1, 1, 0, 0, 0, 0]
    entries = step(memory, meta(2.2, x=4.0), value=3.0)
    # 10 m ahead of the turned vehicle is 10 m to the left of the straight one at the same position.
    torch.testing.assert_close(entries.points[0, :4], torch.tensor([[0.0, 10, 0]] * 2 + [[6.0, 0, 0]] * 2).double(),
                               atol=1e-9, rtol=0)
    assert entries.filled == (6, ) and entries.times[0, [0, 2]].tolist() == pytest.approx([1.7, 2.2])


def test_the_oldest_are_forgotten():
    memory = Memory(4)
    for i in range(5):
        entries = step(memory, meta(0.5 * i, i > 0), value=float(i))
    assert entries.embedding[0, :, 0].tolist() == [3, 3, 2, 2]


def test_unix_times_in_float64():
    """As float32 they have steps of 128 s there."""
    memory = Memory(4)
    step(memory, meta(1533151603.5, False))
    assert step(memory, meta(1533151604.0)).times[0, 0].item() == 0.5


@pytest.mark.parametrize('change', [dict(prev_exists=False), dict(scene='t')], ids=['prev_exists', 'scene'])
def test_lanes_are_apart_and_nan_does_not_outlive_a_start(change):
    """Only the slot that starts anew forgets, and of its NaN nothing is left."""
    memory = Memory(6)
    step(memory, meta(0.0, False), meta(3.0, False))
    step(memory, meta(0.5), meta(3.5), value=torch.nan, points=(torch.nan, torch.inf, 0))
    entries = memory.get(Frames.read([meta(1.0, **change), meta(4.0)], torch.device('cpu')), START, 4)
    fresh = Memory(6).get(Frames.read([meta()], torch.device('cpu')), START, 4)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(entries.tensors().values(), fresh.tensors().values()))
    assert entries.filled == (2, 6) and entries.embedding[1, 0].isnan().all()


@pytest.mark.parametrize('slots, filled', [(None, (2, 2)), ([1], (4, 2)), ([], (4, 4))])
def test_reset(slots, filled):
    memory = Memory(6)
    step(memory, meta(), meta())
    memory.reset(slots)
    assert step(memory, meta(0.5), meta(0.5)).filled == filled


def test_another_batch_size_forgets():
    memory = Memory(6)
    step(memory, meta(), meta())
    assert step(memory, meta(0.5)).filled == (2, )
    assert step(memory, meta(0.5), meta(0.5)).filled == (2, 2)


def test_get_changes_nothing_and_no_gradient_stays():
    memory = Memory(6)
    step(memory, meta())
    frames = Frames.read([meta(0.5)], torch.device('cpu'))
    first, second = memory.get(frames, START, 4), memory.get(frames, START.requires_grad_(), 4)
    assert all(torch.equal(a, b) and not b.requires_grad
               for a, b in zip(first.tensors().values(), second.tensors().values()))
    START.requires_grad_(False)
    memory.update(torch.ones(1, 2, 4, requires_grad=True), torch.ones(1, 2, 3), torch.ones(1, 2, 2))
    assert not any(x.requires_grad for x in memory.get(frames, START, 4).tensors().values())
    memory.reset()
    with pytest.raises(RuntimeError, match='get'):
        memory.update(torch.ones(1, 2, 4), torch.ones(1, 2, 3), torch.ones(1, 2, 2))


def test_frames_out_of_order():
    memory = Memory(6)
    step(memory, meta(2.0))
    with pytest.raises(ValueError, match='s-1.5 is 0.5 s earlier'):
        step(memory, meta(1.5))
    step(memory, meta(1.5, False))


@pytest.mark.parametrize('change, message', [
    (dict(ego_pose=np.full((4, 4), np.nan)), 'ego_pose'),
    (dict(ego_pose=np.eye(3)), 'ego_pose'),
    (dict(ego_pose=np.zeros((4, 4))), 'ego_pose'),
    (dict(ego_pose=pose().T), 'ego_pose'),
    (dict(ego_pose=np.diag([1, -1, 1, 1])), 'ego_pose'),
    (dict(timestamp=math.nan), 'timestamp'),
    (dict(prev_exists=None), 'prev_exists'),
])
def test_bad_frames_are_named(change, message):
    with pytest.raises(ValueError, match=f's-7.*{message}'):
        Frames.read([meta(7) | change], torch.device('cpu'))
    incomplete = meta(7)
    del incomplete[message]
    with pytest.raises(ValueError, match=f's-7.*{message}'):
        Frames.read([incomplete], torch.device('cpu'))
