"""The devkit's detection metrics by distance, by visibility, and by day, night and rain, from one detection file.

The devkit scores what is left of boxes and frames. Only classes that have true boxes in a subset count in its means: it
compares with itself over models, not with another subset. With all ten classes, "all" are the devkit's own numbers.

- Distance: true and predicted boxes by their own distance from the ego vehicle, as the devkit applies its class ranges.
- Visibility: true boxes by the annotators' bin. Predictions have none: one that the devkit's matching at 2 m gives to a
  true box of another bin is left out, a false one stays in all bins. Few boxes of a bin thus have low AP.
- Day, night, rain, dry: frames of scenes whose description says "night" or "rain", or does not.
"""
from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from nuscenes import NuScenes
from nuscenes.eval.common.data_classes import EvalBoxes
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.data_classes import DetectionMetrics

from georope.evaluation.devkit import FrameSetEval, run_evaluation
from georope.files import written_beside

DISTANCES = ((0, 20), (20, 30), (30, 40), (40, 50))  # metres
VISIBILITIES = {'1': '0-40 %', '2': '40-60 %', '3': '60-80 %', '4': '80-100 %'}  # nuScenes' visibility tokens
CONDITIONS = {'day': ('night', False), 'night': ('night', True), 'dry': ('rain', False), 'rain': ('rain', True)}
MEASURES = ('NDS', 'mAP', 'mATE', 'mASE', 'mAOE', 'mAVE', 'mAAE')
ERRORS = ('trans_err', 'scale_err', 'orient_err', 'vel_err', 'attr_err')


def evaluate_subsets(nusc: NuScenes, result_path: str, tokens: Sequence[str],
                     eval_version: str = 'detection_cvpr_2019') -> dict[str, dict[str, dict]]:
    """Scores of all subsets.

    Args:
        nusc: open tables with annotations.
        result_path: detection JSON that has a key for each of the frames.
        tokens: sample tokens of the frames.
        eval_version: name of a devkit configuration.

    Returns:
        kind ('all', 'distance', 'visibility', 'condition') -> subset -> ``frames``, ``boxes`` (true ones), ``MEASURES``
        (NaN where no true box is left), ``AP`` (by class that has true boxes).
    """
    with contextlib.redirect_stderr(io.StringIO()):  # the devkit's progress bars
        whole = FrameSetEval(nusc, config_factory(eval_version), result_path, tokens)
    kinds = dict(all=_all, distance=_by_distance, visibility=_by_visibility, condition=_by_condition)
    return {kind: {name: _score(whole, *boxes) for name, boxes in subsets(whole)} for kind, subsets in kinds.items()}


def _numbers(truth: EvalBoxes, metrics: DetectionMetrics | None) -> dict:
    result = dict(frames=len(truth.sample_tokens), boxes=len(truth.all))
    if metrics is None:
        return result | dict.fromkeys(MEASURES, math.nan) | dict(AP={})
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)  # an error that none of the classes has
        values = (metrics.nd_score, metrics.mean_ap, *map(metrics.tp_errors.get, ERRORS))
    return result | dict(zip(MEASURES, map(float, values))) | dict(
        AP={name: float(ap) for name, ap in metrics.mean_dist_aps.items()})


def _score(whole: FrameSetEval, truth: EvalBoxes, predictions: EvalBoxes) -> dict:
    present = {box.detection_name for box in truth.all}
    if not present:
        return _numbers(truth, None)
    part = copy.copy(whole)
    part.cfg = copy.copy(whole.cfg)
    part.cfg.class_names = [name for name in whole.cfg.class_names if name in present]
    part.gt_boxes, part.pred_boxes = truth, predictions
    _, metrics, _ = run_evaluation(lambda: part)
    return _numbers(truth, metrics)


def _only(boxes: EvalBoxes, keep: Callable, tokens: Sequence[str] | None = None) -> EvalBoxes:
    """The boxes for which ``keep`` holds, of these frames."""
    part = EvalBoxes()
    for token in boxes.sample_tokens if tokens is None else tokens:
        part.add_boxes(token, [box for box in boxes[token] if keep(box)])
    return part


def _all(whole: FrameSetEval) -> Iterator[tuple[str, tuple[EvalBoxes, EvalBoxes]]]:
    yield 'all', (whole.gt_boxes, whole.pred_boxes)


def _by_distance(whole: FrameSetEval) -> Iterator[tuple[str, tuple[EvalBoxes, EvalBoxes]]]:
    for near, far in DISTANCES:
        yield f'{near}-{far} m', tuple(
            _only(boxes, lambda box, near=near, far=far: near <= box.ego_dist < far)
            for boxes in (whole.gt_boxes, whole.pred_boxes))


def _by_visibility(whole: FrameSetEval) -> Iterator[tuple[str, tuple[EvalBoxes, EvalBoxes]]]:
    known = {(record['sample_token'], *record['translation']): record.get('visibility_token')
             for record in whole.nusc.sample_annotation}

    def bin_of(box) -> str | None:
        return known.get((box.sample_token, *box.translation))
    matched = {}
    for token in whole.sample_tokens:
        for prediction, true in _matches(whole.gt_boxes[token], whole.pred_boxes[token], whole.cfg.dist_th_tp):
            matched[id(prediction)] = bin_of(true)
    for token, name in VISIBILITIES.items():
        yield name, (_only(whole.gt_boxes, lambda box, own=token: bin_of(box) == own),
                     _only(whole.pred_boxes, lambda box, own=token: matched.get(id(box), own) == own))


def _matches(truth: Sequence, predictions: Sequence, distance: float) -> Iterator[tuple]:
    """Pairs of a frame as the devkit makes them: best scores first, each takes the nearest free box of its class."""
    by_class = defaultdict(lambda: ([], []))
    for side, boxes in enumerate((truth, predictions)):
        for box in boxes:
            by_class[box.detection_name][side].append(box)
    for true, predicted in by_class.values():
        if not true or not predicted:
            continue
        predicted = sorted(predicted, key=lambda box: -box.detection_score)
        centres, others = (np.array([box.translation[:2] for box in boxes]) for boxes in (predicted, true))
        far = np.linalg.norm(centres[:, None] - others, axis=2)
        for row, box in enumerate(predicted):
            nearest = far[row].argmin()
            if far[row, nearest] < distance:
                far[:, nearest] = np.inf
                yield box, true[nearest]


def _by_condition(whole: FrameSetEval) -> Iterator[tuple[str, tuple[EvalBoxes, EvalBoxes]]]:
    said = {scene['token']: scene['description'].lower() for scene in whole.nusc.scene}
    scenes = {sample['token']: sample['scene_token'] for sample in whole.nusc.sample}
    for name, (word, there) in CONDITIONS.items():
        tokens = [token for token in whole.sample_tokens if (word in said[scenes[token]]) == there]
        yield name, tuple(_only(boxes, lambda box: True, tokens) for boxes in (whole.gt_boxes, whole.pred_boxes))


def subset_table(scores: dict[str, dict[str, dict]]) -> str:
    """The scores as a Markdown table."""
    def number(value: float) -> str:
        return '-' if math.isnan(value) else f'{value:.3f}'
    lines = ['| | frames | boxes | ' + ' | '.join(MEASURES) + ' |', '|---' * (3 + len(MEASURES)) + '|']
    for subsets in scores.values():
        for name, own in subsets.items():
            cells = (name, own['frames'], own['boxes'], *(number(own[measure]) for measure in MEASURES))
            lines.append(f'| {" | ".join(map(str, cells))} |')
    return '\n'.join(lines)


def plot_subsets(scores: dict[str, dict[str, dict]], path: str | Path) -> None:
    """Bars as PNG: a column per kind of subset, a row for NDS and mAP and one for the errors."""
    kinds = [kind for kind in scores if kind != 'all']
    figure = Figure(figsize=(4 * len(kinds), 6), layout='constrained')
    grid = figure.subplots(2, len(kinds), squeeze=False, sharey='row')
    for column, kind in enumerate(kinds):
        names = list(scores[kind])
        for row, measures in enumerate((MEASURES[:2], MEASURES[2:])):
            axes, width = grid[row, column], 0.8 / len(measures)
            for i, measure in enumerate(measures):
                axes.bar(np.arange(len(names)) + (i - (len(measures) - 1) / 2) * width,
                         [scores[kind][name][measure] for name in names], width, label=measure)
            axes.set_xticks(range(len(names)), names)
            axes.set_xlim(-0.5, len(names) - 0.5)  # also where the last ones have no score
            axes.grid(axis='y', alpha=0.3)
        grid[0, column].set_title(kind)
    for row in range(2):
        grid[row, 0].set_ylim(bottom=0)
        grid[row, -1].legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    with written_beside(path) as beside:
        figure.savefig(beside, format='png', dpi=120)
