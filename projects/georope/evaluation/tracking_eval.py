"""The nuScenes devkit's tracking evaluation, for any set of frames of its tables."""
import os
import warnings
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Optional
from unittest.mock import patch

import numpy as np
from mmengine.logging import MMLogger
from nuscenes import NuScenes
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.common.loaders import (
    add_center_dist,
    filter_eval_boxes,
    load_gt_of_sample_tokens,
    load_prediction_of_sample_tokens,
)
from nuscenes.eval.tracking import evaluate as devkit_evaluate
from nuscenes.eval.tracking.data_classes import TrackingBox, TrackingMetrics
from nuscenes.eval.tracking.evaluate import TrackingEval
from nuscenes.eval.tracking.loaders import create_tracks
from nuscenes.utils.splits import create_splits_scenes

from georope.evaluation.accumulation import Accumulation
from georope.evaluation.devkit import run_evaluation, save_metrics
from georope.evaluation.scenes import Frame, scenes_of

# Columns of the table and names in the summary; the devkit's names.
MEASURES = dict(amota='AMOTA', amotp='AMOTP', recall='recall', mota='MOTA', motp='MOTP', ids='IDS', frag='FRAG')
COUNTS = ('ids', 'frag')
MANY_FRAMES = 400  # from here on processes are worth their start
MOST_PROCESSES = 16  # more gain little and each holds a copy of the boxes

CONVENTIONS = '''\
AMOTA and AMOTP are means over 40 recalls from 0.1 to 1. A recall that is not reached counts as the worst value: MOTAR 0
for AMOTA, 2 m for AMOTP. AMOTA 0 with AMOTP 2.000 thus means that not even recall 0.1 is reached, and a score cut that
costs recall makes both worse. recall, MOTA, MOTP, IDS (ID switches) and FRAG belong to the score of best MOTA. Means
are over the classes with ground truth (-: none), IDS and FRAG sums; they leave out a class without any true positive,
as nothing is known of its switches.'''


class _Scenes:
    """The tables as ``create_tracks`` reads them, holding some frames only, whichever split they are of."""

    split = 'val'  # create_tracks asks for one; every scene answers with the name of one of its scenes
    _name = create_splits_scenes()['val'][0]

    def __init__(self, nusc: NuScenes, scenes: dict[str, Sequence[Frame]]) -> None:
        self._nusc, self._ends, self._next = nusc, {}, {}
        for frames in scenes.values():
            tokens = [frame.token for frame in frames]
            self._next.update(zip(tokens, [*tokens[1:], '']))
            scene = nusc.get('sample', tokens[0])['scene_token']
            self._ends[scene] = dict(first_sample_token=tokens[0], last_sample_token=tokens[-1], name=self._name)

    def get(self, table: str, token: str) -> dict:
        record = self._nusc.get(table, token)
        return dict(record, **(self._ends[token] if table == 'scene' else dict(next=self._next[token])))


class FrameSetTracking(TrackingEval):
    """The devkit's tracking evaluation on given frames instead of a named split; the numbers are the devkit's own.

    Frames of a scene that are not given do not exist for it: no track is interpolated there. All frames may be without
    tracks (the devkit stops with "Invalid box type: None"). Evaluates once: its tracks are given up on the way.
    """

    def __init__(self, nusc: NuScenes, config, result_path: str, tokens: Sequence[str], processes: int = 1) -> None:
        self.processes = processes
        self.cfg, self.result_path, self.verbose = config, result_path, False
        self.output_dir = self.render_classes = None  # for pictures
        predicted, self.meta = load_prediction_of_sample_tokens(
            result_path, config.max_boxes_per_sample, TrackingBox, sample_tokens=tokens)
        truth = load_gt_of_sample_tokens(nusc, tokens, TrackingBox)
        for boxes in (predicted, truth):
            add_center_dist(nusc, boxes)
            if boxes.all:
                filter_eval_boxes(nusc, boxes, config.class_range)
        scenes = _Scenes(nusc, scenes_of(nusc.version, nusc.dataroot, tokens))
        self.tracks_gt = create_tracks(truth, scenes, scenes.split, gt=True)
        self.tracks_pred = create_tracks(predicted, scenes, scenes.split, gt=False)

    def evaluate(self):
        """The devkit's, with all classes accumulated before."""
        self.accumulation = Accumulation(self.cfg, self.tracks_gt, self.tracks_pred, self.processes)
        self.tracks_gt = self.tracks_pred = None  # millions of boxes, no longer needed
        found = self.accumulation.run()
        done = {name: SimpleNamespace(accumulate=partial(found.get, name)) for name in found}
        with patch.object(devkit_evaluate, 'TrackingEvaluation', lambda truth, tracks, name, *_, **__: done[name]):
            return super().evaluate()


def evaluate_tracks(nusc: NuScenes, result_path: str, tokens: Sequence[str], output_dir: str,
                    eval_version: str = 'tracking_nips_2019', processes: Optional[int] = None) -> TrackingMetrics:
    """Score a tracking result file on the given frames.

    Args:
        nusc: open tables.
        result_path: tracking JSON that has a key for each of the frames.
        tokens: sample tokens of the frames.
        output_dir: receives the devkit's files as ``tracking_metrics_summary.json`` and
            ``tracking_metrics_details.json``.
        eval_version: name of a devkit configuration.
        processes: that accumulate at the same time; by default all cores up to 16 for many frames, else 1.

    Returns:
        The devkit's metrics.
    """
    MMLogger.get_current_instance()  # made before the devkit's output is caught, or the progress would be, too
    if processes is None:
        cores = len(os.sched_getaffinity(0))
        processes = min(cores, MOST_PROCESSES) if len(tokens) >= MANY_FRAMES else 1
    evaluation, metrics, details = run_evaluation(
        lambda: FrameSetTracking(nusc, config_factory(eval_version), result_path, tokens, processes))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)  # means over no class at all
        summary = dict(metrics.serialize(), meta=evaluation.meta)
    save_metrics(os.path.join(output_dir, 'tracking_metrics'), summary, details)
    return metrics


def tracking_summary(metrics: TrackingMetrics) -> dict[str, float]:
    """AMOTA, AMOTP, recall, MOTA, MOTP, IDS, FRAG over all classes; where none has a value NaN, IDS and FRAG 0."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)
        return {label: metrics.compute_metric(key) for key, label in MEASURES.items()}


def tracking_table(metrics: TrackingMetrics) -> str:
    """The devkit's tracking metrics as a table, a row per class, and how to read it."""
    def row(name: str, values: Sequence[float]) -> str:
        forms = ('.0f' if key in COUNTS else '.3f' for key in MEASURES)
        return f'{name:<22}' + ''.join(
            f'{"-" if np.isnan(value) else format(value, form):>8}' for value, form in zip(values, forms))

    head = f'{"class":<22}' + ''.join(f'{label:>8}' for label in MEASURES.values())
    lines = [head, '-' * len(head)]
    lines += [row(name, [metrics.label_metrics[key][name] for key in MEASURES]) for name in metrics.class_names]
    return '\n'.join([*lines, '-' * len(head), row('all', list(tracking_summary(metrics).values())), CONVENTIONS])
