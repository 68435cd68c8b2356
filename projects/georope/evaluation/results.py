"""From boxes in the LiDAR frame to the nuScenes detection JSON.

A frame's prediction travels as one small dict of numpy arrays ("global boxes"), n boxes, float64 unless noted:
``token`` (str), ``translation`` (n, 3) gravity centres in metres, ``size`` (n, 3) width, length, height, ``rotation``
(n, 4) unit quaternions w, x, y, z, ``velocity`` (n, 2) in m/s, ``score`` (n,), ``label`` (n,) int64 and ``dropped``
(int), the number of boxes beyond the allowed count. All are in the global frame, in descending order of score.
"""
import json
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np
from scipy.spatial.transform import Rotation

from georope.datasets.calibration import CalibrationError, as_pose
from georope.files import atomic_open

# The devkit asks for these five keys; the detectors here see camera images only.
CAMERA_META = dict(use_camera=True, use_lidar=False, use_radar=False, use_map=False, use_external=False)

MOVING_SPEED = 0.2  # m/s
_MOVING = {
    'car': 'vehicle.moving', 'truck': 'vehicle.moving', 'bus': 'vehicle.moving', 'trailer': 'vehicle.moving',
    'construction_vehicle': 'vehicle.moving', 'pedestrian': 'pedestrian.moving', 'motorcycle': 'cycle.with_rider',
    'bicycle': 'cycle.with_rider', 'barrier': '', 'traffic_cone': '',
}
_STILL = {
    'car': 'vehicle.parked', 'truck': 'vehicle.parked', 'bus': 'vehicle.stopped', 'trailer': 'vehicle.parked',
    'construction_vehicle': 'vehicle.parked', 'pedestrian': 'pedestrian.standing',
    'motorcycle': 'cycle.without_rider', 'bicycle': 'cycle.without_rider', 'barrier': '', 'traffic_cone': '',
}


class NotFiniteError(ValueError, FloatingPointError):
    """A prediction is NaN or infinite; names the sample."""


def guess_attribute(name: str, speed: float) -> str:
    """The nuScenes attribute of a box, from its class and its speed in m/s.

    The detectors predict no attributes. Above 0.2 m/s a box moves (cycles then have a rider), otherwise it gets the
    most frequent attribute of its class at rest. This is the rule of mmdet3d and CenterPoint, so that mAAE and NDS are
    comparable with published numbers. Other classes have no attribute.
    """
    return (_MOVING if speed > MOVING_SPEED else _STILL).get(name, '')


def to_global(token: str, boxes, scores, labels, lidar2global, max_boxes: int = 500) -> dict[str, Any]:
    """Convert the boxes of one frame to the global frame and to plain numpy.

    Args:
        token: sample token, for messages.
        boxes: LiDARInstance3DBoxes with 9 dims (n boxes), LiDAR frame, velocity in m/s in the same frame.
        scores: tensor (n,).
        labels: integer tensor (n,).
        lidar2global: (4, 4), LiDAR frame -> global frame, a rigid motion.
        max_boxes: the best this many are kept.

    Returns:
        Global boxes, see the docstring of the module.

    Raises:
        ValueError: a value is not finite, a size is not positive, a box has no velocity, or the pose is not rigid.
    """
    try:
        pose = as_pose(lidar2global, 'it')
    except CalibrationError as error:
        raise CalibrationError(f'sample {token}: lidar2global is not a rigid 4x4 motion: {error} The metric needs the '
                               'pose of the frame, without a BEV augmentation that scales.') from None
    if boxes.tensor.shape[1] != 9:
        raise ValueError(f'sample {token}: boxes have {boxes.tensor.shape[1]} dims, nuScenes needs 9 (with velocity)')

    def plain(values) -> np.ndarray:
        return values.detach().cpu().double().numpy()

    rows, score = plain(boxes.tensor), plain(scores)
    bad = ~np.isfinite(rows).all(1) | ~np.isfinite(score) | (rows[:, 3:6] <= 0).any(1)
    if bad.any():
        raise NotFiniteError(f'sample {token}: {bad.sum()} of {len(rows)} predicted boxes have a NaN or infinite value '
                             f'or no extent, e.g. score {score[bad][0]}, x y z l w h yaw vx vy {rows[bad][0].tolist()}')
    order = np.argsort(-score, kind='stable')[:max_boxes]
    rows[:, :3] = plain(boxes.gravity_center)
    label = labels.detach().cpu().long().numpy()[order]
    return dict(token=token, label=label, dropped=len(score) - len(order), score=score[order],
                **global_boxes(rows[order], pose))


def without_extent(boxes, scores, labels) -> tuple[Any, Any, Any, int]:
    """Boxes without those whose size under- or overflowed (0, negative or infinite), which the devkit would refuse.

    A size is the exponential of a model's output: one query of hundreds may have an impossible size while the rest of
    the frame is right. NaN is another matter: it stays, and :func:`to_global` refuses it.

    Returns:
        boxes, scores, labels, and how many were left out.
    """
    size = boxes.tensor[:, 3:6]
    good = ~((size <= 0) | size.isinf()).any(1)
    number = int((~good).sum())
    return (boxes[good], scores[good], labels[good], number) if number else (boxes, scores, labels, 0)


def global_boxes(rows: np.ndarray, lidar2global: np.ndarray) -> dict[str, np.ndarray]:
    """``translation``, ``size``, ``rotation`` and ``velocity`` of global boxes, see the docstring of the module.

    Args:
        rows: (n, 9) x, y, z of the gravity centre, length, width, height, yaw, velocity in x and y; LiDAR frame. A
            velocity may be NaN.
        lidar2global: (4, 4), a rigid motion.
    """
    turn, yaw = lidar2global[:3, :3], rows[:, 6]
    velocity = np.pad(rows[:, 7:9], ((0, 0), (0, 1)))
    x, y, z, w = Rotation.from_matrix(turn).as_quat()
    cos, sin = np.cos(yaw / 2), np.sin(yaw / 2)
    # Quaternion product of the pose and the turn by yaw about the LiDAR's z axis.
    rotation = np.stack([w * cos - z * sin, x * cos + y * sin, y * cos - x * sin, z * cos + w * sin], axis=-1)
    return dict(translation=rows[:, :3] @ turn.T + lidar2global[:3, 3], size=rows[:, [4, 3, 5]], rotation=rotation,
                velocity=(velocity @ turn.T)[:, :2])


def devkit_boxes(frame: dict[str, Any], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Global boxes of one frame as the devkit's list of dicts: plain python floats and strings only."""
    columns = (frame[key].tolist() for key in ('translation', 'size', 'rotation', 'velocity', 'score', 'label'))
    boxes = []
    for translation, size, rotation, velocity, score, label in zip(*columns):
        name = classes[label]
        boxes.append(dict(
            sample_token=frame['token'], translation=translation, size=size, rotation=rotation, velocity=velocity,
            detection_name=name, detection_score=score,
            attribute_name=guess_attribute(name, float(np.hypot(*velocity)))))
    return boxes


def write_results(path: str, results: Iterable[tuple[str, list[dict]]], meta: dict[str, bool] = CAMERA_META) -> None:
    """Write a nuScenes result file, atomically.

    Args:
        path: the file, e.g. ``work_dirs/x/results_nusc.json``.
        results: pairs of sample token and its boxes as dicts (an empty list for a frame without boxes). Any iterable:
            frames are written one by one, so that a whole split never has to be in memory as dicts.
        meta: the submission's ``meta``, which says what the method has used.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    with atomic_open(path) as file:
        dump_results(file, results, meta)


def dump_results(file: IO[str], results: Iterable[tuple[str, list[dict]]], meta: dict[str, bool]) -> None:
    """What :func:`write_results` writes, into an open text file."""
    file.write(f'{{"meta": {json.dumps(meta)}, "results": {{')
    for index, (token, boxes) in enumerate(results):
        file.write(f'{"," if index else ""}\n{json.dumps(token)}: {json.dumps(boxes, allow_nan=False)}')
    file.write('\n}}\n')
