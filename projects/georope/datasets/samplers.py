"""Streams: which frames are seen together and in which order, in training and in tests.

A *stream slot* is a position in the global batch: item b of every batch of a rank belongs to the same slot, and a slot
shows the frames of a scene one after the other. Both classes here are batch samplers, since slots need the batch size;
the loader's ``sampler`` only brings dataset, rank, seed and epoch (mmengine's DefaultSampler).
"""
import contextlib
from collections.abc import Iterator
from typing import Union

import numpy as np
import torch

from georope.registry import DATA_SAMPLERS


class StreamIndex(int):
    """Index of a frame in the dataset, with what its stream slot adds to it.

    Attributes:
        starts: The slot starts anew here: memory of what it showed before must not be used.
        seed: Seed, iteration and slot, which fix the random draws of the frame.
    """

    def __new__(cls, index: int, starts: bool, seed: tuple[int, int, int]) -> 'StreamIndex':
        self = super().__new__(cls, index)
        self.starts, self.seed = starts, seed
        return self

    def __reduce__(self) -> tuple:
        return StreamIndex, (int(self), self.starts, self.seed)


@contextlib.contextmanager
def draws_of(index: int) -> Iterator[None]:
    """numpy's global generator as the seed of a :class:`StreamIndex` sets it, and afterwards as it was before.

    A plain index changes nothing: the generator goes on.
    """
    if not isinstance(index, StreamIndex):
        yield
        return
    state = np.random.get_state()
    np.random.seed(index.seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def _scenes(sampler) -> list[list[int]]:
    if not hasattr(sampler.dataset, 'scenes'):
        raise TypeError(f'{type(sampler.dataset).__name__} has no scenes: a batch_sampler for streams needs a '
                        'georope.CameraDataset or NuScenesCameraDataset as dataset, not one wrapped into another; '
                        'several info files go into one as ann_file=[...].')
    return sampler.dataset.scenes()


@DATA_SAMPLERS.register_module()
class StreamBatchSampler:
    """Batches of a training on streams: lists of :class:`StreamIndex`, item b of slot ``rank * batch_size + b``.

    Whole scenes, or parts of them, are shuffled by the seed, again for each pass over them, into one endless list. Of L
    slots over all ranks, slot l shows the sequences l, l + L, l + 2 L, ... of that list, the next as soon as one ends.
    This is the order of the StreamPETR repository (its InfiniteGroupEachSampleInBatchSampler, its splits), for any
    number of sequences: with fewer sequences than slots, several slots show the same one.

    What a batch holds depends on (seed, iteration) alone, so any iteration can be the first one at once, and the same
    slots show the same frames with the same draws however they are spread over ranks. An epoch has as many iterations
    as it takes to show ``len(dataset)`` frames, rounded up; slots go on beyond its end. All slots start anew
    (``StreamIndex.starts``) at the first iteration of each epoch and where a run is resumed. So a run that is resumed
    from the checkpoint of an epoch equals one that was never stopped, and no memory has to be saved.

    Args:
        sampler: Brings ``dataset``, ``rank``, ``world_size``, ``seed`` and ``epoch``; its own order is not used.
        batch_size: Stream slots of this rank.
        seq_split_num: Parts of each scene, of equal length but for the last, which is shorter or, in short scenes,
            missing; ``'all'``: each frame is a sequence, an ordinary shuffled training.

    Attributes:
        start: First iteration of the next pass; None: where the sampler's epoch begins.
        endless: Do not stop at the end of the epoch (for loops that count iterations).
    """

    def __init__(self, sampler, batch_size: int, seq_split_num: Union[int, str] = 1) -> None:
        if seq_split_num != 'all' and not (isinstance(seq_split_num, int) and seq_split_num > 0):
            raise ValueError(f"StreamBatchSampler: seq_split_num={seq_split_num!r}, must be 1, 2, ... or 'all'.")
        self.sampler, self.batch_size = sampler, batch_size
        self.seed, self.start, self.endless = sampler.seed, None, False
        self.sequences = []
        for scene in _scenes(sampler):
            size = 1 if seq_split_num == 'all' else -(-len(scene) // seq_split_num)
            self.sequences += [scene[i:i + size] for i in range(0, len(scene), size)]
        if not self.sequences:
            raise ValueError('StreamBatchSampler: the dataset has no frames.')

    @property
    def num_slots(self) -> int:
        return self.batch_size * self.sampler.world_size

    def __len__(self) -> int:
        """Iterations of an epoch."""
        return -(-len(self.sampler.dataset) // self.num_slots)

    def __iter__(self) -> Iterator[list[StreamIndex]]:
        # mmengine's InfiniteSampler has no epochs; its loop is told where to start by StreamHook.
        epoch = getattr(self.sampler, 'epoch', 0)
        iteration = first = epoch * len(self) if self.start is None else self.start
        numbers = range(self.sampler.rank * self.batch_size, (self.sampler.rank + 1) * self.batch_size)
        slots = [self._slot(number, first) for number in numbers]
        while True:
            anew = iteration == first or iteration % len(self) == 0
            yield [
                StreamIndex(index, anew or starts, (self.seed, iteration, number))
                for number, (index, starts) in zip(numbers, map(next, slots))
            ]
            iteration += 1
            if iteration % len(self) == 0 and not self.endless:
                return

    def _slot(self, number: int, first: int) -> Iterator[tuple[int, bool]]:
        """Frames of a slot from iteration ``first`` on, and whether a sequence starts there."""
        for sequence in self._sequences(number):
            skipped, first = min(first, len(sequence)), max(first - len(sequence), 0)
            for position in range(skipped, len(sequence)):
                yield sequence[position], position == 0

    def _sequences(self, slot: int) -> Iterator[list[int]]:
        """Sequences of a slot from the start of training on."""
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(len(self.sequences), generator=generator).tolist()
            yield from (self.sequences[number] for number in order[slot::self.num_slots])
            slot = slot - len(order) + self.num_slots * len(order[slot::self.num_slots])


@DATA_SAMPLERS.register_module()
class SceneBatchSampler:
    """Batches of a test on streams: each rank gets whole scenes, each frame occurs once, none is added.

    A batch holds ``batch_size`` scenes of equal length in lockstep, or fewer where no more of that length are left, so
    that the number of slots changes at starts of scenes only. Ranks may differ in their number of batches; with fewer
    scenes than ranks, some have none. Scenes go, the longest first, to the rank with the fewest frames so far.

    With ``batch_size`` 1 a model's results do not depend on the number of ranks, to the byte, if all have as many CPU
    threads; larger batches hold other scenes on other numbers of ranks and round differently.

    Args:
        sampler: Brings ``dataset``, ``rank`` and ``world_size``; its own order is not used.
        batch_size: Most scenes at a time.
    """

    def __init__(self, sampler, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size
        loads = [0] * sampler.world_size
        by_length: dict[int, list] = {}
        for scene in sorted(_scenes(sampler), key=len, reverse=True):
            rank = loads.index(min(loads))
            loads[rank] += len(scene)
            if rank == sampler.rank:
                by_length.setdefault(len(scene), []).append(scene)
        self.batches = [
            list(batch) for scenes in by_length.values() for i in range(0, len(scenes), batch_size)
            for batch in zip(*scenes[i:i + batch_size])
        ]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)
