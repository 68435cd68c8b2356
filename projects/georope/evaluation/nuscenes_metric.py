"""nuScenes detection and tracking scores as an mmengine metric."""
import os
from collections.abc import Sequence
from typing import Optional

import numpy as np
from mmengine.logging import MMLogger
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.constants import DETECTION_NAMES
from nuscenes.eval.detection.data_classes import DetectionMetrics

from georope.datasets.info_file import CREATE_COMMAND
from georope.errors import InputError
from georope.evaluation import class_ap
from georope.evaluation.camera_metric import CameraMetric, Frames, table
from georope.evaluation.devkit import evaluate_results, open_tables, split_name
from georope.evaluation.results import devkit_boxes, write_results
from georope.evaluation.scenes import part_of, scenes_of
from georope.evaluation.tracker import Tracker, track_results
from georope.evaluation.tracking_eval import evaluate_tracks, tracking_summary, tracking_table
from georope.registry import METRICS

ERRORS = {**class_ap.ERRORS, 'attr_err': 'mAAE'}


@METRICS.register_module()
class NuScenesMetric(CameraMetric):
    """NDS, mAP, true positive errors and AMOTA from the nuScenes devkit, or the result files for its server.

    See :class:`CameraMetric` for what data samples need, which frames are scored and what is written. The info file's
    ``metainfo['version']`` names the tables under ``data_root``, whose annotations are the ground truth.

    ``mAP`` and ``NDS`` are always the devkit's: the mean over its ten classes; classes that a model does
    not have count 0. Such a model also gets ``mAP_subset``, the mean AP over its own classes.

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
        go_on: see :class:`CameraMetric`.
        prefix: first part of the names of the metrics, ``nuscenes`` by default: ``nuscenes/NDS``.
        collect_device: 'cpu' or 'gpu', where mmengine gathers the results of all processes.
    """

    default_prefix = 'nuscenes'

    def __init__(self, data_root: str, ann_file: str, format_only: bool = False,
                 jsonfile_prefix: Optional[str] = None, eval_version: str = 'detection_cvpr_2019',
                 tracking: Optional[dict] = None, go_on: Optional[str] = None, prefix: Optional[str] = None,
                 collect_device: str = 'cpu') -> None:
        super().__init__(ann_file, format_only=format_only, jsonfile_prefix=jsonfile_prefix, go_on=go_on,
                         prefix=prefix, collect_device=collect_device)
        self.data_root = data_root
        self.eval_version = eval_version
        self.tracker = None if tracking is None else Tracker(**tracking)
        self.max_boxes = config_factory(eval_version).max_boxes_per_sample

    def _read_frames(self, info: dict) -> Frames:
        frames = self._frames_of(info)
        if frames.version is None:
            raise InputError(f'{self.ann_file} has no metainfo.version; make a new one with `{CREATE_COMMAND}`')
        if frames.version == 'v1.0-test' and not self.format_only:
            if self.jsonfile_prefix is None:
                raise InputError(f'{self.ann_file} is of v1.0-test, which has no public annotations: only a result '
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
            raise InputError(f'classes {foreign} are none of the ten nuScenes detection classes '
                             f'({", ".join(DETECTION_NAMES)}), so neither devkit nor server accepts them: rename them '
                             'in the metainfo of the dataset, or use another metric (georope.CameraMetric)')
        return classes

    def _score(self, frames: dict, tokens: list, folder: str) -> dict:
        """Write all result files, then have the devkit score them; detections are logged before the slow tracking."""
        logger = MMLogger.get_current_instance()
        path = self._write(frames, tokens, folder)
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
    rows = {name: (metrics.mean_dist_aps[name], *(metrics.get_label_tp(name, key) for key in ERRORS))
            for name in classes}
    means = {'mAP, mATE .. mAAE': (metrics.mean_ap, *(metrics.tp_errors[key] for key in ERRORS))}
    if len(classes) < len(DETECTION_NAMES):
        means = {f'mAP_subset, {len(classes)} classes': [np.mean([metrics.mean_dist_aps[name] for name in classes])],
                 **means}
    return '\n'.join([table(rows, means, tuple(ERRORS.values())), f'{"NDS":<22}{metrics.nd_score:>8.3f}'])
