"""Detection scores of any classes from an info file alone, and the common part of all metrics of camera frames."""
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from mmengine.dist import all_reduce, collect_results
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from georope.datasets.info_file import CREATE_COMMAND, load_infos
from georope.errors import InputError
from georope.evaluation.class_ap import ERRORS, score_classes, truth_boxes
from georope.evaluation.devkit import save_metrics
from georope.evaluation.main_process import on_main_process
from georope.evaluation.partial import load_done, save_done
from georope.evaluation.results import devkit_boxes, to_global, without_extent, write_results
from georope.messages import some
from georope.registry import METRICS

MAX_BOXES = 500  # per frame, the devkit's limit


class Frames(NamedTuple):
    """The frames of an info file, in its order."""

    version: Optional[str]
    tokens: list  # of the samples
    scenes: Optional[dict] = None  # their frames by scene, where tables are needed


@METRICS.register_module()
class CameraMetric(BaseMetric):
    """mAP and true positive errors of classes of any names, by the devkit's matching; no tables are needed.

    Predictions are keyed by the sample token that every data sample carries, never by position, so neither the order
    of the info file nor the number of processes matters. Each data sample needs, as metainfo, ``token`` and
    ``lidar2global`` ((4, 4), LiDAR frame -> global frame) and, as predictions, ``pred_instances_3d`` with
    ``bboxes_3d`` (LiDARInstance3DBoxes of 9 dims in the un-augmented LiDAR frame), ``scores_3d`` and ``labels_3d``.

    The frames of the info file are scored. If the dataset was cut down on purpose (``indices=...``), only its frames
    are scored, and the log says so. Fewer predictions than frames in the dataset are an error; repeated predictions
    (padding of distributed samplers) are dropped. At most 500 boxes per frame are kept, by score.
    Boxes whose size under- or overflowed are left out, and a warning counts them; NaN is an error.

    Ground truth are the ``instances`` of the info file: those of the dataset's classes, within ``class_range``, and not
    without any LiDAR or radar point (``bbox_3d_isvalid``). Matching, distances (0.5, 1, 2, 4 m), average precision and
    errors (of matches within 2 m) are computed by the nuScenes devkit. For its own classes and ranges the numbers equal
    its own, with one exception: bicycles within bicycle racks count. There are no attributes and no NDS.

    Metrics: ``mAP``, ``mATE`` (m), ``mASE``, ``mAOE`` (rad), ``mAVE`` (m/s), ``{class}_AP``. A class that the frames do
    not show has AP NaN and is left out of the means.

    Args:
        ann_file: mmdet3d v2 info file of the frames to score.
        class_range: within how many metres of the ego vehicle boxes count: one number, or {class: metres} for all.
        use_valid_flag: leave out objects without any point, as the dataset's option does.
        format_only: only write the result file.
        jsonfile_prefix: folder that receives ``results_nusc.json`` (detections in the devkit's format, which
            tools/visualize.py draws) and ``metrics_summary.json``. Without it nothing is kept; needed when nothing but
            the file is made.
        go_on: file of a test of the same weights that ended early; its frames count as predicted here.
        prefix: first part of the names of the metrics, ``camera`` by default: ``camera/mAP``.
        collect_device: 'cpu' or 'gpu', where mmengine gathers the results of all processes.
    """

    default_prefix = 'camera'

    def __init__(self, ann_file: str, class_range: Union[float, Mapping[str, float]] = 50.0,
                 use_valid_flag: bool = True, format_only: bool = False, jsonfile_prefix: Optional[str] = None,
                 go_on: Optional[str] = None, prefix: Optional[str] = None, collect_device: str = 'cpu') -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        if format_only and jsonfile_prefix is None:
            raise InputError('format_only=True keeps nothing but the result file: set jsonfile_prefix to its folder')
        self.ann_file = ann_file
        self.class_range = class_range
        self.use_valid_flag = use_valid_flag
        self.format_only = format_only
        self.jsonfile_prefix = jsonfile_prefix
        self.go_on, self.model = go_on, ''  # model: digest of the weights, from tools/test.py
        self.max_boxes = MAX_BOXES

    @functools.cached_property
    def frames(self) -> Frames:
        """Version and sample tokens of the info file, read once, when the first predictions come."""
        return self._read_frames(load_infos(self.ann_file))

    def _read_frames(self, info: dict) -> Frames:
        """The frames of the info file. Ground truth is checked now, so that a fault in it ends a test at its start."""
        if not self.format_only:
            self._ranges()
            truth_boxes(info, self.ann_file, self.classes, self.use_valid_flag)
        return self._frames_of(info)

    def _frames_of(self, info: dict) -> Frames:
        frames = Frames(info['metainfo'].get('version'), [entry['token'] for entry in info['data_list']])
        if len(set(frames.tokens)) < len(frames.tokens):
            raise InputError(f'{self.ann_file} has frames twice; make a new one with `{CREATE_COMMAND}`')
        return frames

    @property
    def classes(self) -> Sequence[str]:
        """Class names in the order of the labels, from the dataset."""
        return self.dataset_meta['classes']

    def _ranges(self) -> dict[str, float]:
        if not isinstance(self.class_range, Mapping):
            return dict.fromkeys(self.classes, float(self.class_range))
        if set(self.class_range) != set(self.classes):
            raise InputError(f'class_range has {sorted(self.class_range)}, the dataset {sorted(self.classes)}: give '
                             'one number for all classes, or one for each')
        return dict(self.class_range)

    def check(self) -> None:
        """Raise the errors of files and names that the first batch would raise; called before a training begins."""
        _ = self.classes, self.frames

    def process(self, data_batch, data_samples: Sequence[dict]) -> None:
        """Bring a batch of predictions to the global frame and to plain numpy at once: results stay small."""
        known, classes = set(self.frames.tokens), self.classes
        for sample in data_samples:
            missing = [key for key in ('token', 'lidar2global') if key not in sample]
            if missing:
                raise KeyError(f'data sample {sample.get("token", sample.get("sample_idx"))} has no {missing}: add '
                               'them to meta_keys of the packing transform, or use georope.PackCameraInputs')
            token, found = sample['token'], sample['pred_instances_3d']
            if token not in known:
                raise InputError(f'sample {token} is not among the {len(known)} frames of {self.ann_file}, e.g. '
                                 f'{some(sorted(known), 3)}: dataset and metric must use the same ann_file')
            boxes, scores, labels, unfit = without_extent(found['bboxes_3d'], found['scores_3d'], found['labels_3d'])
            frame = dict(to_global(token, boxes, scores, labels, sample['lidar2global'], self.max_boxes), unfit=unfit)
            if len(frame['label']) and not 0 <= frame['label'].min() <= frame['label'].max() < len(classes):
                raise InputError(f'sample {token}: labels {np.unique(frame["label"]).tolist()} do not fit the '
                                 f'{len(classes)} classes of the dataset')
            self.results.append(frame)

    def evaluate(self, size: int) -> dict:
        """Gather from all processes, then score; ``size`` is the number of frames of the dataset.

        mmengine would cut the gathered list to ``size`` before the repetitions are known, and could cut frames; and it
        would let the other processes wait in a collective, whose timeout ends them (NCCL: after ten minutes).
        """
        self._dataset_size = size
        gathered = torch.tensor(len(self.results))
        all_reduce(gathered)
        results = collect_results(self.results, int(gathered), self.collect_device)
        self.results.clear()
        metrics = on_main_process(lambda: self.compute_metrics(results))
        return {f'{self.prefix}/{name}': value for name, value in metrics.items()}

    def compute_metrics(self, results: list) -> dict:
        """Write the result file and have the devkit score it. Runs in the main process only."""
        logger = MMLogger.get_current_instance()
        frames = {}
        for result in results:  # the first of several is the one that is not padding
            frames.setdefault(result['token'], result)
        if len(frames) < len(results):
            logger.info(f'{len(results) - len(frames)} repeated frames (padding of the sampler) left out')
        predicted = len(frames)
        if self.go_on:
            frames = {**load_done(self.go_on, self.model), **frames}
        tokens = self._tokens(frames, self._dataset_size + len(frames) - predicted)
        unfit = {token: frames[token]['unfit'] for token in tokens if frames[token]['unfit']}
        if unfit:
            logger.warning(f'{sum(unfit.values())} boxes of {len(unfit)} frames have a size that under- or overflowed '
                           f'(0 or infinite): left out, the first in sample {next(iter(unfit))}')
        dropped = [frame['dropped'] for frame in frames.values() if frame['dropped']]
        if dropped:
            logger.warning(f'{len(dropped)} frames have more than {self.max_boxes} boxes: the {sum(dropped)} of lowest '
                           'score left out')
        if not any(len(frame['label']) for frame in frames.values()):
            logger.warning(f'0 boxes in all of the {len(tokens)} frames: the model is untrained, or its score '
                           'threshold is too high')
        folder = self.jsonfile_prefix or tempfile.mkdtemp(prefix='georope_results_')
        try:
            metrics = self._score(frames, tokens, folder)
        except BaseException:
            logger.error(f'the evaluation did not end; what was written before is kept in {folder}')
            raise
        if not self.jsonfile_prefix:
            shutil.rmtree(folder)
        return metrics

    def _score(self, frames: dict, tokens: list, folder: str) -> dict:
        """Write the result files and score."""
        self._write(frames, tokens, folder)
        if self.format_only:
            return {}
        truth = truth_boxes(load_infos(self.ann_file), self.ann_file, self.classes, self.use_valid_flag)
        scores = score_classes([frames[token] for token in tokens], truth, self.classes, self._ranges())
        save_metrics(os.path.join(folder, 'metrics'), dict(scores.summary, class_range=self._ranges()))
        logger = MMLogger.get_current_instance()
        absent = [name for name in self.classes if name not in scores.classes]
        if absent:
            logger.warning(f'no ground truth of {some(absent)} in these frames: left out of the means')
        logger.info(f'detection, {len(tokens)} frames of {self.ann_file}\n'
                    + table(scores.rows(), {'mAP, mATE .. mAVE': scores.means()}))
        return scores.summary

    def _write(self, frames: dict, tokens: list, folder: str) -> str:
        """Write the detections; the path of the file."""
        path = os.path.join(folder, 'results_nusc.json')
        write_results(path, ((token, devkit_boxes(frames[token], self.classes)) for token in tokens))
        if self.jsonfile_prefix:
            MMLogger.get_current_instance().info(f'detections of {len(tokens)} frames written to {path}')
        return path

    def _tokens(self, frames: dict, wanted: int) -> list:
        """The tokens to score, in the order of the info file; all of them must have been predicted."""
        expected = self.frames.tokens
        tokens = [token for token in expected if token in frames]
        missing = set(expected) - set(tokens)
        if len(tokens) != wanted:
            path = save_done(self.jsonfile_prefix or tempfile.mkdtemp(prefix='georope_results_'), frames, self.model)
            raise InputError(
                f'predictions for {len(tokens)} frames, but the dataset has {wanted} and {self.ann_file} '
                f'{len(expected)}: {len(missing)} frames missing, e.g. {some(sorted(missing), 3)}. A frame without '
                'any box must be predicted too, with empty boxes. What was done is kept: go on with tools/test.py ... '
                f'--go-on {path}')
        if missing:
            MMLogger.get_current_instance().warning(
                f'the dataset holds {len(tokens)} of the {len(expected)} frames of {self.ann_file}: only these are '
                'scored, by their own ground truth. The numbers do not compare with those of the whole split.')
        return tokens


def table(rows: Mapping[str, Sequence[float]], means: Mapping[str, Sequence[float]],
          errors: Sequence[str] = tuple(ERRORS.values())) -> str:
    """AP and errors by class, and below a line their means, as text; NaN is a dash."""
    def line(name: str, values: Sequence[Any]) -> str:
        return f'{name:<22}' + ''.join(
            f'{value if isinstance(value, str) else "-" if np.isnan(value) else format(value, ".3f"):>8}'
            for value in values)

    head = line('class', ('AP', *(name.removeprefix('m') for name in errors)))
    rule = '-' * len(head)
    return '\n'.join([head, rule, *(line(*row) for row in rows.items()), rule, *(line(*row) for row in means.items())])
