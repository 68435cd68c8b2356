"""The nuScenes devkit's detection evaluation, for any set of frames of its tables."""
import contextlib
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from mmengine.logging import MMLogger
from nuscenes import NuScenes
from nuscenes.eval.common.loaders import (
    add_center_dist,
    filter_eval_boxes,
    load_gt_of_sample_tokens,
    load_prediction_of_sample_tokens,
)
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.data_classes import DetectionBox, DetectionMetrics
from nuscenes.eval.detection.evaluate import DetectionEval

from georope.datasets.splits import splits_of
from georope.datasets.tables import NuScenesTables
from georope.errors import InputError, MissingInput
from georope.files import atomic_open


def open_tables(version: str, data_root: str, tokens: Sequence[str]) -> NuScenes:
    """Open the tables ``data_root/version`` and make sure that they know the given sample tokens.

    Raises:
        MissingInput: the folder is not there.
        InputError: the tables are faulty, or frames are unknown to these tables.
    """
    folder = os.path.join(os.path.expanduser(data_root), version)
    if not os.path.isdir(folder):
        raise MissingInput(f'no nuScenes tables at {folder} (the version is that of the info file)')
    nusc = NuScenesTables(data_root, version)
    unknown = sorted(set(tokens) - {sample['token'] for sample in nusc.sample})
    if unknown:
        raise InputError(f'{len(unknown)} of {len(tokens)} frames of the info file are not in the tables {folder}, '
                         f'e.g. {", ".join(unknown[:3])}. Info file and tables do not belong together.')
    return nusc


def split_name(nusc: NuScenes, tokens: Sequence[str]) -> Optional[str]:
    """Name of the split that consists of exactly these frames: an official one, or one of ``splits.json``, or None."""
    for name, scenes in splits_of(nusc.version, nusc.dataroot).items():
        of_split = {scene['token'] for scene in nusc.scene if scene['name'] in scenes}
        if set(tokens) == {sample['token'] for sample in nusc.sample if sample['scene_token'] in of_split}:
            return name
    return None


class FrameSetEval(DetectionEval):
    """The devkit's evaluation on a given list of frames instead of a named split; the numbers are the devkit's own.

    Two things differ from ``DetectionEval``: ground truth and predictions are loaded for the
    frames given (the devkit's own loaders, in the order given), and frames without a single box in all of them are
    allowed (the devkit stops with "Invalid box type: None"), so that no detections at all scores mAP 0, NDS 0 and
    errors of 1.
    """

    def __init__(self, nusc: NuScenes, config, result_path: str, tokens: Sequence[str]) -> None:
        self.nusc, self.cfg, self.result_path, self.verbose = nusc, config, result_path, False
        self.pred_boxes, self.meta = load_prediction_of_sample_tokens(
            result_path, config.max_boxes_per_sample, DetectionBox, sample_tokens=tokens)
        self.gt_boxes = load_gt_of_sample_tokens(nusc, tokens, DetectionBox)
        for boxes in (self.pred_boxes, self.gt_boxes):
            add_center_dist(nusc, boxes)
            if boxes.all:
                filter_eval_boxes(nusc, boxes, config.class_range)
        self.sample_tokens = self.gt_boxes.sample_tokens


def evaluate_results(nusc: NuScenes, result_path: str, tokens: Sequence[str], output_dir: str,
                     eval_version: str = 'detection_cvpr_2019') -> DetectionMetrics:
    """Score a result file on the given frames.

    Args:
        nusc: open tables.
        result_path: detection JSON that has a key for each of the frames.
        tokens: sample tokens of the frames.
        output_dir: receives the devkit's ``metrics_summary.json`` and ``metrics_details.json``.
        eval_version: name of a devkit configuration.

    Returns:
        The devkit's metrics.
    """
    evaluation, metrics, details = run_evaluation(
        lambda: FrameSetEval(nusc, config_factory(eval_version), result_path, tokens))
    save_metrics(os.path.join(output_dir, 'metrics'), dict(metrics.serialize(), meta=evaluation.meta), details)
    return metrics


def run_evaluation(build: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """Build and run one of the devkit's evaluations; what it prints goes to the debug log.

    Returns:
        The evaluation, its metrics and its details.
    """
    noise = io.StringIO()  # the devkit's progress bars
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        evaluation = build()
        metrics, details = evaluation.evaluate()
    MMLogger.get_current_instance().debug(noise.getvalue())
    return evaluation, metrics, details


def save_metrics(prefix: str, summary: dict, details: Any = None) -> None:
    """Write ``<prefix>_summary.json`` and, of the devkit's details, ``<prefix>_details.json``."""
    files = dict(summary=summary) if details is None else dict(summary=summary, details=details.serialize())
    for name, content in files.items():
        with atomic_open(f'{prefix}_{name}.json') as file:
            json.dump(content, file, indent=2)


def ground_truth_results(nusc: NuScenes, tokens: Sequence[str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The annotations of some frames as if they were detections of score 1, for ``write_results``.

    Boxes without LiDAR and radar points are left out: the devkit removes them from the ground truth, so they would be
    false detections. An unknown (NaN) velocity, which the devkit never scores, becomes 0.
    """
    with contextlib.redirect_stderr(io.StringIO()):
        truth = load_gt_of_sample_tokens(nusc, tokens, DetectionBox)
    keys = ('sample_token', 'translation', 'size', 'rotation', 'detection_name', 'attribute_name')
    return [(token, [dict({key: getattr(box, key) for key in keys}, detection_score=1.0,
                          velocity=np.nan_to_num(box.velocity).tolist())
                     for box in truth[token] if box.num_pts != 0]) for token in tokens]
