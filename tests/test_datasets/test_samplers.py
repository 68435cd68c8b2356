"""Which frames a slot sees, in which order, from where on: on sets that are no more than lengths of scenes."""
import itertools
import pickle
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from georope.datasets import SceneBatchSampler, StreamBatchSampler, StreamIndex
from georope.engine import StreamHook
from georope.registry import DATA_SAMPLERS

UNEVEN = (3, 1, 9, 2, 5)


class Scenes:
    """A dataset of scenes of the given lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return sum(self.lengths)

    def scenes(self):
        ends = list(itertools.accumulate(self.lengths))
        return [list(range(end - length, end)) for end, length in zip(ends, self.lengths)]


def inner(lengths, rank=0, ranks=1, seed=0, epoch=0):
    return SimpleNamespace(dataset=Scenes(lengths), rank=rank, world_size=ranks, seed=seed, epoch=epoch)


def batches(number, lengths=UNEVEN, batch_size=1, split=1, start=0, **where):
    sampler = StreamBatchSampler(inner(lengths, **where), batch_size, split)
    sampler.start, sampler.endless = start, True
    return list(itertools.islice(sampler, number))


def slots_of_the_recipe(number, sequences, slots, seed):
    """What the slots show, step by step: a queue each, refilled by every ``slots``-th of endless permutations."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    endless = [int(i) for _ in range(2 * number * slots) for i in torch.randperm(len(sequences), generator=generator)]
    turns = [iter(endless[slot::slots]) for slot in range(slots)]
    queues = [[] for _ in range(slots)]
    shown = []
    for _ in range(number):
        for queue, turn in zip(queues, turns):
            if not queue:
                queue += sequences[next(turn)]
        shown.append([queue.pop(0) for queue in queues])
    return shown


@pytest.mark.parametrize('lengths', [UNEVEN, (4, ), (7, ) * 12], ids=str)
@pytest.mark.parametrize('batch_size, ranks', [(1, 1), (4, 1), (2, 3), (1, 8)])
@pytest.mark.parametrize('seed', [0, 5])
def test_order_of_the_recipe(lengths, batch_size, ranks, seed):
    """Also with fewer scenes than slots, where the recipe stops."""
    expected = slots_of_the_recipe(25, Scenes(lengths).scenes(), batch_size * ranks, seed)
    parts = [batches(25, lengths, batch_size, rank=rank, ranks=ranks, seed=seed) for rank in range(ranks)]
    assert [sum(step, []) for step in zip(*parts)] == expected


@pytest.mark.parametrize('split, expected', [
    (1, [[1], [2], [9], [40]]),
    (2, [[1], [1, 1], [5, 4], [20, 20]]),
    (4, [[1], [1, 1], [3, 3, 3], [10] * 4]),
    (40, [[1], [1] * 2, [1] * 9, [1] * 40]),
    ('all', [[1], [1] * 2, [1] * 9, [1] * 40]),
])
def test_parts_of_scenes(split, expected):
    """Parts of 3, 3, 3 for 9 in 4 are the recipe's, which then refuses them."""
    sampler = StreamBatchSampler(inner((1, 2, 9, 40)), 1, split)
    assert [len(part) for part in sampler.sequences] == sum(expected, [])
    assert sum(sampler.sequences, []) == list(range(52))


@pytest.mark.parametrize('split', [0, -1, 1.5, 'most', None])
def test_refuses_other_splits(split):
    with pytest.raises(ValueError, match='seq_split_num'):
        StreamBatchSampler(inner(UNEVEN), 1, split)


def test_refuses_an_empty_dataset():
    with pytest.raises(ValueError, match='no frames'):
        StreamBatchSampler(inner(()), 1)


@pytest.mark.parametrize('split', [1, 2, 'all'])
def test_any_iteration_can_be_the_first(split):
    """The same frames and draws as in a run that came there step by step."""
    whole = batches(70, batch_size=3, split=split)
    for start in range(40):
        resumed = sum(batches(30, batch_size=3, split=split, start=start), [])
        straight = sum(whole[start:start + 30], [])
        assert resumed == straight
        assert [i.seed for i in resumed] == [i.seed for i in straight]
        assert [i.starts for i in resumed] == [True] * 3 + [i.starts for i in straight[3:]]


def test_resumes_at_once():
    """Of nuScenes' size, 24 epochs in."""
    sampler = StreamBatchSampler(inner((40, ) * 700, rank=7, ranks=8), 2, 2)
    sampler.start = 24 * len(sampler)
    begin = time.perf_counter()
    next(iter(sampler))
    assert time.perf_counter() - begin < 1


def test_slots_do_not_depend_on_how_ranks_share_them():
    one = batches(40, batch_size=6, split=2, seed=3)
    for ranks in (2, 3, 6):
        parts = [batches(40, batch_size=6 // ranks, split=2, rank=rank, ranks=ranks, seed=3) for rank in range(ranks)]
        for whole, *shares in zip(one, *parts):
            joined = sum(shares, [])
            assert joined == whole
            assert [(i.starts, i.seed) for i in joined] == [(i.starts, i.seed) for i in whole]


def test_a_slot_starts_anew_at_sequences_and_epochs_and_goes_on_elsewhere():
    per_epoch = len(StreamBatchSampler(inner(UNEVEN), 2, 2))
    sequences = StreamBatchSampler(inner(UNEVEN), 2, 2).sequences
    firsts = {sequence[0] for sequence in sequences}
    steps = batches(50, batch_size=2, split=2)
    continued = 0
    for number, (before, after) in enumerate(zip(steps, steps[1:]), 1):
        for last, index in zip(before, after):
            assert index.starts == (index in firsts or number % per_epoch == 0)
            assert index in firsts or index == last + 1
            continued += not index.starts
    assert continued > 30
    assert any(index not in firsts for step in steps[per_epoch::per_epoch] for index in step)  # the order goes on


def test_every_frame_is_seen_equally_often():
    """One slot, whole passes."""
    seen = np.bincount(sum(batches(4 * 20), []))
    assert (seen == 4).all() and len(seen) == 20


@pytest.mark.parametrize('batch_size, ranks, expected', [(1, 1, 20), (3, 1, 7), (2, 2, 5), (8, 4, 1)])
def test_epochs(batch_size, ranks, expected):
    """``len`` batches each; the next one goes on where the last one ended."""
    sampler = StreamBatchSampler(inner(UNEVEN, ranks=ranks), batch_size)
    assert len(sampler) == expected
    epochs = []
    for epoch in range(3):
        sampler.sampler.epoch = epoch  # as mmengine's DistSamplerSeedHook does it
        epochs.append(list(sampler))
    assert [len(epoch) for epoch in epochs] == [expected] * 3
    assert sum(epochs, []) == batches(3 * expected, batch_size=batch_size, ranks=ranks)


@pytest.mark.parametrize('batch_size, split, warns', [(2, 1, False), (3, 1, True), (3, 2, False), (64, 1, True)])
def test_epochs_that_cut_sequences_are_told(batch_size, split, warns):
    """20 frames, at most 9 of them in a scene."""
    sampler = StreamBatchSampler(inner(UNEVEN), batch_size, split)
    runner = SimpleNamespace(seed=0, logger=mock.Mock(),
                             train_loop=SimpleNamespace(dataloader=SimpleNamespace(batch_sampler=sampler)))
    StreamHook().before_train(runner)
    assert f'{batch_size} slots, {len(sampler)} iterations per epoch' in runner.logger.info.call_args.args[0]
    assert ['longest sequence, 9 frames' in call.args[0] for call in runner.logger.warning.call_args_list] == [
        True] * warns


def test_an_index_reaches_a_worker_as_it_is():
    index = pickle.loads(pickle.dumps(StreamIndex(7, True, (0, 3, 1))))
    assert (index, index.starts, index.seed) == (7, True, (0, 3, 1)) and isinstance(index, StreamIndex)


def test_registered():
    sampler = DATA_SAMPLERS.build(dict(type='georope.StreamBatchSampler', sampler=inner(UNEVEN), batch_size=2))
    assert isinstance(sampler, StreamBatchSampler)


# Tests


@pytest.mark.parametrize('batch_size', [1, 2, 3])
@pytest.mark.parametrize('ranks', [1, 2, 3, 7])
def test_whole_scenes_in_lockstep(ranks, batch_size):
    """Each frame once, each scene on one rank and item, slots change in number at starts only."""
    lengths = (3, 5, 5, 2, 5, 1)
    scenes = Scenes(lengths).scenes()
    firsts = {scene[0] for scene in scenes}
    samplers = [SceneBatchSampler(inner(lengths, rank=rank, ranks=ranks), batch_size) for rank in range(ranks)]
    assert sorted(index for sampler in samplers for batch in sampler for index in batch) == list(range(21))
    for sampler in samplers:
        steps = list(sampler)
        assert len(sampler) == len(steps) and all(len(batch) <= batch_size for batch in steps)
        for before, after in zip([[]] + steps, steps):
            if set(after) & firsts:
                assert set(after) <= firsts
            else:
                assert after == [index + 1 for index in before]
        assert not steps or set(steps[-1]) <= {scene[-1] for scene in scenes}
    loads = [sum(map(len, sampler)) for sampler in samplers]
    assert loads == {1: [21], 2: [11, 10], 3: [8, 7, 6], 7: [5, 5, 5, 3, 2, 1, 0]}[ranks]


def test_scenes_of_a_length_share_a_batch():
    assert list(SceneBatchSampler(inner((2, 3, 2)), 2)) == [[2], [3], [4], [0, 5], [1, 6]]
