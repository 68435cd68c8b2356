"""nuScenes detection and tracking scores as an mmengine metric."""
import functools
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import torch
from mmengine.dist import all_reduce, collect_results
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.constants import DETECTION_NAMES
from nuscenes.eval.detection.data_classes import DetectionMetrics

from georope.datasets.info_file import CREATE_COMMAND, load_infos
from georope.evaluation.devkit import evaluate_results, open_tables, split_name
from georope.evaluation.main_process import on_main_process
from georope.evaluation.results import devkit_boxes, to_global, write_results
from georope.evaluation.scenes import part_of, scenes_of
from georope.evaluation.tracker import Tracker, track_results
from georope.evaluation.tracking_eval import evaluate_tracks, tracking_summary, tracking_table
from georope.messages import some
from georope.registry import METRICS

ERRORS = dict(trans_err='mATE', scale_err='mASE', orient_err='mAOE', vel_err='mAVE', attr_err='mAAE')


class _Frames(NamedTuple):
    version: str
    tokens: list  # sample tokens in the order of the info file
    scenes: Optional[dict] = None  # their frames by scene, where tables are needed


@METRICS.register_module()
class NuScenesMetric(BaseMetric):
    """NDS, mAP, true positive errors and AMOTA from the nuScenes devkit, or the result files for its server.

    Predictions are keyed by the sample token that every data sample carries, never by position, so neither the order
    of the info file nor the number of processes matters. Each data sample needs, as metainfo, ``token`` and
    ``lidar2global`` ((4, 4), LiDAR frame -> global frame) and, as predictions, ``pred_instances_3d`` with
    ``bboxes_3d`` (LiDARInstance3DBoxes of 9 dims in the un-augmented LiDAR frame), ``scores_3d`` and ``labels_3d``.

    The frames scored are those of the info file, whose ``metainfo['version']`` names the tables under ``data_root``.
    When the dataset was cut down on purpose (``indices=...``), exactly its frames are scored, and the log says so.
    Fewer predictions than the dataset has frames are an error, repeated ones (padding of distributed samplers) are
    dropped. At most 500 boxes per frame are kept, by score.

    ``mAP`` and ``NDS`` are always the devkit's: the mean over its ten classes, of which a model for fewer classes
    gets 0 for the others. Such a model also gets ``mAP_subset``, the mean AP over its own classes.

    With ``tracking`` the detections are tracked scene by scene and scored by the devkit's ``tracking_nips_2019``:
    AMOTA, AMOTP, and recall, MOTA, MOTP, IDS (ID switches), FRAG at the score of best MOTA. Scenes and times are those
    of ``scene.json`` and ``sample.json``.

    Args:
        data_root: root folder of the nuScenes tables.
        ann_file: mmdet3d v2 info file of the frames to score.
        format_only: only write the result files. Forced for ``v1.0-test``, which has no public annotations.
        jsonfile_prefix: folder that receives ``results_nusc.json`` and the devkit's ``metrics_summary.json`` and
            ``metrics_details.json``; with ``tracking`` also ``tracking_nusc.json`` and the two others as
            ``tracking_metrics_*``. Without it nothing is kept; needed when nothing but the files is made.
        eval_version: the devkit's name of the evaluation's parameters.
        tracking: options of :class:`georope.evaluation.Tracker`, ``dict()`` for its defaults; None leaves tracking out.
        prefix: first part of the names of the metrics, ``nuscenes`` by default: ``nuscenes/NDS``.
        collect_device: 'cpu' or 'gpu', where mmengine gathers the results of all processes.
    """

    default_prefix = 'nuscenes'

    def __init__(self, data_root: str, ann_file: str, format_only: bool = False,
                 jsonfile_prefix: Optional[str] = None, eval_version: str = 'detection_cvpr_2019',
                 tracking: Optional[dict] = None, prefix: Optional[str] = None, collect_device: str = 'cpu') -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        if format_only and jsonfile_prefix is None:
            raise ValueError('format_only=True keeps nothing but the result file: set jsonfile_prefix to its folder')
        self.data_root = data_root
        self.ann_file = ann_file
        self.format_only = format_only
        self.jsonfile_prefix = jsonfile_prefix
        self.eval_version = eval_version
        self.tracker = None if tracking is None else Tracker(**tracking)
        self.max_boxes = config_factory(eval_version).max_boxes_per_sample

    @functools.cached_property
    def frames(self) -> _Frames:
        """Version and sample tokens of the info file, read once, when the first predictions come."""
        info = load_infos(self.ann_file)
        frames = _Frames(info['metainfo'].get('version'), [entry['token'] for entry in info['data_list']])
        if frames.version is None or len(set(frames.tokens)) < len(frames.tokens):
            raise ValueError(f'{self.ann_file} has no metainfo.version, or has frames twice; make a new one with '
                             f'`{CREATE_COMMAND}`')
        if frames.version == 'v1.0-test' and not self.format_only:
            if self.jsonfile_prefix is None:
                raise ValueError(f'{self.ann_file} is of v1.0-test, which has no public annotations: only a result '
                                 'file can be made. Set jsonfile_prefix to the folder it goes to.')
            MMLogger.get_current_instance().warning('v1.0-test has no public annotations: writing the result file only')
            self.format_only = True
        if self.tracker or not self.format_only:
            # Read now, so that wrong tables end a long test at its beginning.
            frames = frames._replace(scenes=scenes_of(frames.version, self.data_root, frames.tokens))
        return frames

    @property
    def classes(self) -> Sequence[str]:
        """Class names in the order of the labels, from the dataset."""
        classes = self.dataset_meta['classes']
        foreign = [name for name in classes if name not in DETECTION_NAMES]
        if foreign:
            raise ValueError(f'classes {foreign} are none of the ten nuScenes detection classes '
                             f'({", ".join(DETECTION_NAMES)}), so neither devkit nor server accepts them: rename them '
                             'in the metainfo of the dataset, or use another metric')
        return classes

    def process(self, data_batch, data_samples: Sequence[dict]) -> None:
        """Bring a batch of predictions to the global frame and to plain numpy at once: results stay small."""
        known, classes = set(self.frames.tokens), self.classes
        for sample in data_samples:
            missing = [key for key in ('token', 'lidar2global') if key not in sample]
            if missing:
                raise KeyError(f'data sample {sample.get("token", sample.get("sample_idx"))} has no {missing}: add '
                               'them to meta_keys of the packing transform, or use georope.PackCameraInputs')
            token, predicted = sample['token'], sample['pred_instances_3d']
            if token not in known:
                raise ValueError(f'sample {token} is not among the {len(known)} frames of {self.ann_file}, e.g. '
                                 f'{some(sorted(known), 3)}: dataset and metric must use the same ann_file')
            frame = to_global(token, predicted['bboxes_3d'], predicted['scores_3d'], predicted['labels_3d'],
                              sample['lidar2global'], self.max_boxes)
            if len(frame['label']) and not 0 <= frame['label'].min() <= frame['label'].max() < len(classes):
                raise ValueError(f'sample {token}: labels {np.unique(frame["label"]).tolist()} do not fit the '
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
        tokens = self._tokens(frames)
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
        """Write all result files, then have the devkit score them; detections are logged before the slow tracking."""
        logger = MMLogger.get_current_instance()
        path = os.path.join(folder, 'results_nusc.json')
        write_results(path, ((token, devkit_boxes(frames[token], self.classes)) for token in tokens))
        if self.jsonfile_prefix:
            logger.info(f'detections of {len(tokens)} frames written to {path}')
        tracks = self._track(frames, tokens, folder) if self.tracker else None
        if self.format_only:
            return {}
        nusc = open_tables(self.frames.version, self.data_root, tokens)
        metrics = evaluate_results(nusc, path, tokens, folder, self.eval_version)
        split = split_name(nusc, tokens)
        where = f'split {split} of {nusc.version}' if split else f'no official split, part of {nusc.version}'
        logger.info(f'nuScenes detection, {len(tokens)} frames, {where}\n{format_table(metrics, self.classes)}')
        if not tracks:
            return self._summary(metrics)
        logger.info('devkit evaluates the tracks, in processes if there are many frames (tracking=None leaves it out)')
        tracking = evaluate_tracks(nusc, tracks, tokens, folder)
        logger.info(f'nuScenes tracking, {len(tokens)} frames, {where}, {self.tracker}\n{tracking_table(tracking)}')
        return dict(self._summary(metrics), **tracking_summary(tracking))

    def _track(self, frames: dict, tokens: list, folder: str) -> str:
        """Write the tracking file; its path."""
        path = os.path.join(folder, 'tracking_nusc.json')
        scenes = part_of(self.frames.scenes, tokens)
        classes = self.classes
        write_results(path, track_results(lambda token: devkit_boxes(frames[token], classes), scenes, self.tracker))
        if self.jsonfile_prefix:
            MMLogger.get_current_instance().info(f'tracks of {len(scenes)} scenes written to {path}')
        return path

    def _tokens(self, frames: dict) -> list:
        """The tokens to score, in the order of the info file; all of them must have been predicted."""
        expected = self.frames.tokens
        tokens = [token for token in expected if token in frames]
        missing = set(expected) - set(tokens)
        if len(tokens) != self._dataset_size:
            raise ValueError(
                f'predictions for {len(tokens)} frames, but the dataset has {self._dataset_size} and {self.ann_file} '
                f'{len(expected)}: {len(missing)} frames missing, e.g. {some(sorted(missing), 3)}. A frame without '
                'any box must be predicted too, with empty boxes.')
        if missing:
            MMLogger.get_current_instance().warning(
                f'the dataset holds {len(tokens)} of the {len(expected)} frames of {self.ann_file}: only these are '
                'scored, by their own ground truth. The numbers do not compare with those of the whole split.')
        return tokens

    def _summary(self, metrics: DetectionMetrics) -> dict:
        summary = dict(NDS=metrics.nd_score, mAP=metrics.mean_ap)
        summary.update({ERRORS[key]: value for key, value in metrics.tp_errors.items()})
        aps = {name: float(metrics.mean_dist_aps[name]) for name in self.classes}
        if len(aps) < len(DETECTION_NAMES):
            summary['mAP_subset'] = float(np.mean(list(aps.values())))
        summary.update({f'{name}_AP': ap for name, ap in aps.items()})
        return summary


def format_table(metrics: DetectionMetrics, classes: Sequence[str]) -> str:
    """The devkit's metrics as a table: a row per class, their means over the devkit's ten classes, NDS."""
    def row(name: str, values) -> str:
        return f'{name:<22}' + ''.join(f'{"-" if np.isnan(value) else format(value, ".3f"):>8}' for value in values)

    head = f'{"class":<22}' + ''.join(f'{name:>8}' for name in ('AP', 'ATE', 'ASE', 'AOE', 'AVE', 'AAE'))
    lines = [head, '-' * len(head)]
    for name in classes:
        errors = (metrics.get_label_tp(name, key) for key in ERRORS)
        lines.append(row(name, (metrics.mean_dist_aps[name], *errors)))
    lines.append('-' * len(head))
    if len(classes) < len(DETECTION_NAMES):
        lines.append(row(f'mAP_subset, {len(classes)} classes', [np.mean([metrics.mean_dist_aps[c] for c in classes])]))
    lines.append(row('mAP, mATE .. mAAE', (metrics.mean_ap, *(metrics.tp_errors[key] for key in ERRORS))))
    return '\n'.join([*lines, f'{"NDS":<22}{metrics.nd_score:>8.3f}'])
