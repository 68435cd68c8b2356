"""The devkit's accumulation of tracks as many small jobs, in processes: every number is the devkit's own.

The devkit takes up to 40 rounds per class over all frames, one per score, each with a table of events and metrics of
it. Here each round is a job. Its boxes come as arrays, and objects are built for those of the class and score only; its
ids are numbers, which cost less than strings; events that no metric reads are left out before tables are joined; and
metrics of single objects are computed once per distinct history.
"""
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional
from unittest.mock import patch

import numpy as np
import sklearn
from mmengine.logging import MMLogger
from nuscenes.eval.tracking import algo
from nuscenes.eval.tracking.algo import TrackingEvaluation
from nuscenes.eval.tracking.constants import MOT_METRIC_MAP
from nuscenes.eval.tracking.data_classes import TrackingBox, TrackingConfig, TrackingMetricData
from nuscenes.eval.tracking.metrics import (
    longest_gap_duration,
    num_fragmentations_custom,
    track_initialization_duration,
)
from nuscenes.eval.tracking.mot import MOTAccumulatorCustom
from nuscenes.eval.tracking.utils import create_motmetrics

PART = 12  # scenes that are looked at, or joined, at once; near the square root of their number in val
REPORT = 60  # seconds between lines of progress

Tracks = dict[str, dict[int, list[TrackingBox]]]  # scene -> timestamp -> boxes


class _Box(NamedTuple):
    """The part of a TrackingBox that the accumulation reads."""

    tracking_id: int
    tracking_score: float
    translation: tuple[float, float]  # m, global frame
    tracking_name: str


class _Boxes(NamedTuple):
    """The n boxes of one class in one scene."""

    times: list[int]  # of all frames, also of those without boxes
    frame: np.ndarray  # (n,) index of the frame
    id: np.ndarray  # (n,) one number per track
    score: np.ndarray  # (n,)
    xy: np.ndarray  # (n, 2) m, global frame

    @classmethod
    def pack(cls, frames: dict[int, list[TrackingBox]], name: str) -> '_Boxes':
        ids: dict[str, int] = {}
        rows = [(i, ids.setdefault(box.tracking_id, len(ids)), box.tracking_score, *box.translation[:2])
                for i, boxes in enumerate(frames.values()) for box in boxes if box.tracking_name == name]
        frame, id, score, x, y = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        return cls([*frames], frame.astype(np.int32), id.astype(np.int32), score.copy(), np.stack([x, y], axis=1))

    def unpack(self, name: str, threshold: Optional[float]) -> dict[int, list[_Box]]:
        """The boxes of a score of at least ``threshold``, all without one, by timestamp."""
        kept = slice(None) if threshold is None else self.score >= threshold
        frames = {stamp: [] for stamp in self.times}
        columns = (column[kept].tolist() for column in (self.frame, self.id, self.score, self.xy))
        for frame, id, score, xy in zip(*columns):
            frames[self.times[frame]].append(_Box(id, score, xy, name))
        return frames


class _Accumulator(MOTAccumulatorCustom):
    """The devkit's accumulator, joined in parts; one by one, each scene would copy the table of all before it."""

    @staticmethod
    def merge_event_dataframes(accumulators: Sequence[MOTAccumulatorCustom]) -> Any:
        join = MOTAccumulatorCustom.merge_event_dataframes
        tables = [_without_pairs(accumulator.events) for accumulator in accumulators]
        return join([join(tables[i:i + PART]) for i in range(0, len(tables), PART)])


def _without_pairs(events: Any) -> Any:
    """Only the first of a frame's RAW events, by which frames are counted; no metric of the devkit reads the others."""
    return events[(events.Type != 'RAW') | (events.index.get_level_values('Event') == 0)]


class _Objects:
    """The devkit's metrics that go through the objects one by one, each distinct history of an object looked at once.

    A history is the frames of an object, from its first one on, and whether it was missed in them. These metrics depend
    on nothing else. Most objects share their history with another object, or with themselves at another score.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[float, float, float]] = {}

    def __call__(self, df: Any, obj_frequencies: Any) -> np.ndarray:
        """(objects, 3) fragmentations, initialization and longest gap; the last two in s, NaN if never found."""
        rows = df.noraw[df.noraw.OId.notna()]
        rows = rows.assign(OId=rows.OId.astype('int64'))
        order = np.argsort(rows.OId.to_numpy(), kind='stable')  # rows are in order of time
        history = np.stack([rows.index.get_level_values('FrameId').to_numpy(), rows.Type.to_numpy() == 'MISS'], axis=1)
        starts = np.flatnonzero(np.diff(rows.OId.to_numpy()[order], prepend=-1))
        return np.array([self._object(rows, history, part) for part in np.split(order, starts[1:])])

    def _object(self, rows: Any, history: np.ndarray, part: np.ndarray) -> tuple[float, float, float]:
        key = (history[part] - [history[part[0], 0], 0]).tobytes()
        if key not in self.known:
            own = rows.iloc[part]
            self.known[key] = tuple(metric(SimpleNamespace(noraw=own), own.OId.value_counts()) for metric in (
                num_fragmentations_custom, track_initialization_duration, longest_gap_duration))
        return self.known[key]

    def register(self, host: Any) -> None:
        """Replace the devkit's own loops; sums of whole and half numbers are exact in any order."""
        def mean(values: np.ndarray) -> float:
            found = values[~np.isnan(values)]
            return found.sum() / len(found) if len(found) else np.nan

        host.register(self, ['obj_frequencies'], name='objects')
        host.register(lambda df, objects: int(objects[:, 0].sum()), ['objects'], name='num_fragmentations_custom')
        host.register(lambda df, objects: mean(objects[:, 1]), ['objects'], name='tid')
        host.register(lambda df, objects: mean(objects[:, 2]), ['objects'], name='lgd')


class _Rounds:
    """Rounds of the devkit's accumulation over packed boxes; what a worker holds.

    Args:
        options: of ``TrackingEvaluation``, beyond tracks and class.
        truth: by class and scene.
        tracks: the same of the predictions.
    """

    def __init__(self, options: dict, truth: dict[str, dict[str, _Boxes]],
                 tracks: dict[str, dict[str, _Boxes]]) -> None:
        self.options, self.truth, self.tracks, self.objects = options, truth, tracks, _Objects()

    def __call__(self, name: str, threshold: Optional[float], scenes: Sequence[str]) -> tuple[Any, float]:
        """One round; the scores of true positives (without threshold) or the table of metrics, and CPU seconds."""
        start = time.process_time()
        truth = {scene: self.truth[name][scene].unpack(name, None) for scene in scenes}
        tracks = {scene: self.tracks[name][scene].unpack(name, threshold) for scene in scenes}
        evaluation = TrackingEvaluation(truth, tracks, name, verbose=False, **self.options)
        with patch.object(algo, 'MOTAccumulatorCustom', _Accumulator), \
                sklearn.config_context(skip_parameter_validation=True):
            events, found = evaluation.accumulate_threshold(threshold)
        if threshold is not None:
            host = create_motmetrics()
            self.objects.register(host)
            found = host.compute(events, metrics=MOT_METRIC_MAP.keys(), name=evaluation.name_gen(threshold))
        return found, time.process_time() - start


_rounds: Optional[_Rounds] = None  # of this worker


def _start(rounds: _Rounds) -> None:
    global _rounds
    _rounds = rounds
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Otherwise the pool of a process that was killed waits for jobs for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(*job) -> tuple[Any, float]:
    return _rounds(*job)


class _Here(Executor):
    """Runs jobs at once, in this process."""

    def __init__(self, rounds: _Rounds) -> None:
        self.rounds = rounds

    def submit(self, work: Callable, *job) -> Future:
        future = Future()
        future.set_result(self.rounds(*job))
        return future


class _Host:
    """Stands for the host of metrics in ``accumulate``: the worker has computed them."""

    @staticmethod
    def compute(events: Future, metrics: Any, name: str) -> Any:
        return events.result()[0]


class Accumulation:
    """``accumulate`` of all classes.

    Args:
        config: the devkit's.
        truth: tracks by scene and timestamp.
        tracks: the same of the predictions.
        processes: at the same time; with one everything runs in this process.

    Attributes:
        jobs: (class, score or None, CPU seconds) of each round done.
    """

    def __init__(self, config: TrackingConfig, truth: Tracks, tracks: Tracks, processes: int) -> None:
        self.options = dict(dist_fcn=config.dist_fcn_callable, dist_th_tp=config.dist_th_tp,
                            min_recall=config.min_recall, num_thresholds=TrackingMetricData.nelem,
                            metric_worst=config.metric_worst)
        self.names, self.truth, self.processes = config.class_names, truth, processes
        self.rounds = _Rounds(self.options, *(
            {name: {scene: _Boxes.pack(frames, name) for scene, frames in boxes.items()} for name in self.names}
            for boxes in (truth, tracks)))
        self.jobs: list[tuple[str, Optional[float], float]] = []

    def run(self) -> dict[str, TrackingMetricData]:
        """The devkit's data of each class."""
        sizes = {name: sum(len(boxes.id) for boxes in self.rounds.tracks[name].values()) for name in self.names}
        names = sorted(self.names, key=sizes.get, reverse=True)  # the longest first
        self.logger, self.start = MMLogger.get_current_instance(), time.monotonic()
        self.reported, self.done = self.start, 0
        with patch.object(algo, 'create_motmetrics', _Host), self._pool() as self.pool, \
                ThreadPoolExecutor(1 if self.processes == 1 else len(names)) as classes:
            try:
                return dict(zip(names, classes.map(self._class, names)))
            except BaseException:
                self.pool.shutdown(wait=False, cancel_futures=True)  # or all classes would be waited for
                raise

    def _pool(self) -> Executor:
        if self.processes == 1:
            return _Here(self.rounds)
        # Spawned: a fork would copy the threads' locks of torch and of a GPU's driver.
        return ProcessPoolExecutor(self.processes, multiprocessing.get_context('spawn'), _start, (self.rounds,))

    def _class(self, name: str) -> TrackingMetricData:
        evaluation = _Class(self, name)
        data = evaluation.accumulate()
        done = [(name, threshold, job.result()[1]) for threshold, job in evaluation.jobs]
        self.jobs += done
        self.logger.info(f'tracks of class {name}: {len(done)} jobs of {sum(job[2] for job in done):.0f} s CPU, '
                         f'{time.monotonic() - self.start:.0f} s after the start')
        return data

    def submit(self, name: str, threshold: Optional[float], scenes: Sequence[str]) -> Future:
        """Hand out a round; the log tells how many are done, once a minute."""
        def report(_: Future) -> None:
            self.done += 1
            if time.monotonic() - self.reported > REPORT:
                self.reported = time.monotonic()
                most = len(self.names) * (TrackingMetricData.nelem + -(-len(self.truth) // PART))
                self.logger.info(f'tracks: {self.done} of at most {most} jobs done after '
                                 f'{self.reported - self.start:.0f} s')

        future = self.pool.submit(_work, name, threshold, scenes)
        future.add_done_callback(report)
        return future


class _Class(TrackingEvaluation):
    """One class, whose rounds are jobs of :class:`Accumulation`; ``jobs`` are pairs of a score or None and a job."""

    def __init__(self, shared: Accumulation, name: str) -> None:
        super().__init__(shared.truth, {}, name, verbose=False, **shared.options)
        self.shared, self.jobs = shared, []

    def compute_thresholds(self, gt_box_count: int) -> tuple[list[float], list[float]]:
        thresholds, recalls = super().compute_thresholds(gt_box_count)
        for threshold in dict.fromkeys(thresholds):
            if not np.isnan(threshold):
                self._submit(threshold, [*self.tracks_gt])
        return thresholds, recalls

    def accumulate_threshold(self, threshold: Optional[float] = None) -> tuple[Any, list[float]]:
        """The devkit's; instead of events the job that makes metrics of them."""
        if threshold is not None:
            return dict(self.jobs)[threshold], []
        scenes = [*self.tracks_gt]
        parts = [self._submit(None, scenes[i:i + PART]) for i in range(0, len(scenes), PART)]
        return None, [score for part in parts for score in part.result()[0]]

    def _submit(self, threshold: Optional[float], scenes: Sequence[str]) -> Future:
        self.jobs.append((threshold, self.shared.submit(self.class_name, threshold, scenes)))
        return self.jobs[-1][1]
