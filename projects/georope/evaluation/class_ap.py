"""Average precision and true positive errors of any classes: the devkit's functions, ground truth of an info file."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from nuscenes.eval.common.data_classes import EvalBox, EvalBoxes
from nuscenes.eval.detection.algo import accumulate, calc_ap, calc_tp
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.data_classes import DetectionBox

from georope.datasets.calibration import as_pose
from georope.errors import InputError
from georope.evaluation.results import global_boxes

ERRORS = dict(trans_err='mATE', scale_err='mASE', orient_err='mAOE', vel_err='mAVE')


class NamedBox(DetectionBox):
    """The devkit's detection box with a class of any name."""

    def __init__(self, name: str, score: float, **box) -> None:
        EvalBox.__init__(self, **box)
        self.detection_name, self.detection_score, self.attribute_name = name, score, ''


class Truth(NamedTuple):
    """The annotations of a frame: names of their classes, global boxes (see ``results``), and the ego position."""

    names: list[str]
    boxes: dict[str, np.ndarray]
    ego: np.ndarray  # (3,) metres, global


class ClassScores(NamedTuple):
    """AP and errors by class, of those that have ground truth."""

    classes: dict[str, tuple]  # AP, errors in the order of ERRORS
    all_classes: Sequence[str]

    def means(self) -> list[float]:
        return [float(np.mean(column)) for column in zip(*self.classes.values())] or [float('nan')] * (1 + len(ERRORS))

    def rows(self) -> dict[str, Sequence[float]]:
        """AP and errors by class, NaN where there is none."""
        nothing = (float('nan'), ) * (1 + len(ERRORS))
        return {name: self.classes.get(name, nothing) for name in self.all_classes}

    @property
    def summary(self) -> dict[str, float]:
        """The metrics by name."""
        return {**dict(zip(('mAP', *ERRORS.values()), self.means())),
                **{f'{name}_AP': values[0] for name, values in self.rows().items()}}


def truth_boxes(info: dict, path: str, classes: Sequence[str], use_valid_flag: bool) -> dict[str, Truth]:
    """The annotations of an info file by sample token.

    Args:
        info: the file's content.
        path: the file, for messages.
        classes: those that count.
        use_valid_flag: leave out objects of ``bbox_3d_isvalid`` False.

    Raises:
        InputError: the file does not know a class, has no annotations, or an object cannot be a box.
    """
    categories = info['metainfo'].get('categories', {})
    unknown = [name for name in classes if categories.get(name, -1) < 0]
    if unknown:
        raise InputError(f'{path} has no labels for the classes {unknown}; it has '
                         f'{[name for name, label in categories.items() if label >= 0]}')
    name_of = {categories[name]: name for name in classes}
    truth = {}
    for entry in info['data_list']:
        where = f'{path}: sample {entry["token"]}: '
        if 'instances' not in entry:
            raise InputError(f'{where}no annotations, so nothing can be scored: set format_only=True and '
                             'jsonfile_prefix to write the detections alone')
        ego2global = as_pose(entry['ego2global'], where + 'ego2global')
        lidar2ego = as_pose(entry.get('lidar_points', {}).get('lidar2ego', np.eye(4)), where + 'lidar_points.lidar2ego')
        objects = [item for item in entry['instances'] if item['bbox_label_3d'] in name_of
                   and (item.get('bbox_3d_isvalid', True) or not use_valid_flag)]
        rows = np.array([[*item['bbox_3d'][:7], *item.get('velocity', (np.nan, np.nan))] for item in objects],
                        dtype=float).reshape(-1, 9)
        if not np.isfinite(rows[:, :7]).all() or (rows[:, 3:6] <= 0).any():
            raise InputError(f'{where}a bbox_3d is not finite or has no extent')
        truth[entry['token']] = Truth([name_of[item['bbox_label_3d']] for item in objects],
                                      global_boxes(rows, ego2global @ lidar2ego), ego2global[:3, 3])
    return truth


def score_classes(frames: Sequence[dict[str, Any]], truth: Mapping[str, Truth], classes: Sequence[str],
                  ranges: Mapping[str, float]) -> ClassScores:
    """Score the detections of some frames.

    Args:
        frames: global boxes of the frames, see ``results``.
        truth: of at least these frames.
        classes: names in the order of the labels.
        ranges: within how many metres of the ego vehicle boxes of a class count.
    """
    true, predicted = EvalBoxes(), EvalBoxes()
    for frame in frames:
        token = frame['token']
        of = truth[token]
        names = [classes[label] for label in frame['label']]
        true.add_boxes(token, _boxes(token, of.names, of.boxes, [-1.] * len(of.names), of.ego, ranges))
        predicted.add_boxes(token, _boxes(token, names, frame, frame['score'].tolist(), of.ego, ranges))
    config, scores = config_factory('detection_cvpr_2019'), {}
    for name in classes:
        if not any(box.detection_name == name for box in true.all):
            continue
        data = {distance: accumulate(true, predicted, name, config.dist_fcn_callable, distance)
                for distance in config.dist_ths}
        aps = [calc_ap(of, config.min_recall, config.min_precision) for of in data.values()]
        scores[name] = (float(np.mean(aps)),
                        *(calc_tp(data[config.dist_th_tp], config.min_recall, error) for error in ERRORS))
    return ClassScores(scores, classes)


def _boxes(token: str, names: Sequence[str], boxes: Mapping[str, np.ndarray], scores: Sequence[float], ego: np.ndarray,
           ranges: Mapping[str, float]) -> list[NamedBox]:
    columns = (boxes[key].tolist() for key in ('translation', 'size', 'rotation', 'velocity'))
    found = [NamedBox(name, score, sample_token=token, translation=translation, size=size, rotation=rotation,
                      velocity=velocity, ego_translation=tuple(np.subtract(translation, ego).tolist()))
             for name, score, translation, size, rotation, velocity in zip(names, scores, *columns)]
    return [box for box in found if box.ego_dist < ranges[box.detection_name]]
