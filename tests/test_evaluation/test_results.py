import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nuscenes.utils.data_classes import Box
from perfect_detector import CLASSES, predict
from pyquaternion import Quaternion

from georope.datasets.calibration import as_pose
from georope.evaluation.results import (
    CAMERA_META,
    devkit_boxes,
    guess_attribute,
    to_global,
    without_extent,
    write_results,
)

CAR = [10., 20., 1., 4., 2., 1.5, 0.3, 3., 4.]


def convert(boxes, scores=None, labels=None, pose=None, **kwargs):
    scores = np.ones(len(boxes)) if scores is None else scores
    labels = np.zeros(len(boxes)) if labels is None else labels
    found = predict('token', None, boxes, scores, labels).pred_instances_3d
    return to_global('token', found.bboxes_3d, found.scores_3d, found.labels_3d,
                     np.eye(4) if pose is None else pose, **kwargs)


def pose_of(quaternion: Quaternion, translation=(0, 0, 0)) -> np.ndarray:
    pose = quaternion.transformation_matrix
    pose[:3, 3] = translation
    return pose


def test_velocity_is_given_in_the_global_frame():
    """An object that moves along global x, seen from a LiDAR turned by 90 degrees, moves along its -y."""
    pose = pose_of(Quaternion(axis=[0, 0, 1], degrees=90), (500, 800, 0))
    frame = convert([[0, 0, 0, 4, 2, 1, 0, 0, -1]], pose=pose)
    np.testing.assert_allclose(frame['velocity'], [[1, 0]], atol=1e-7)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: np.linalg.norm(q) > 0.1),
       st.lists(st.floats(-3000, 3000), min_size=3, max_size=3), st.floats(-10, 10), st.integers(0, 5))
def test_agrees_with_the_devkits_boxes(quaternion, translation, yaw, count):
    """Any pose, pitch and roll included: the devkit's own Box, rotated and translated, is where ours is."""
    rotation = Quaternion(quaternion).unit
    rows = np.array([[i + 1., 2 * i, -i, 4 + i, 2, 1, yaw + i, i, -1] for i in range(count)]).reshape(-1, 9)
    frame = convert(rows, pose=pose_of(rotation, translation))
    assert [len(frame[key]) for key in ('translation', 'size', 'rotation', 'velocity', 'score', 'label')] == [count] * 6
    for i, row in enumerate(np.float32(rows).astype(np.float64)):
        box = Box(row[:3], row[[4, 3, 5]], Quaternion(axis=[0, 0, 1], radians=row[6]), velocity=(*row[7:], 0))
        box.rotate(rotation)
        box.translate(np.array(translation))
        ours = Box(frame['translation'][i], frame['size'][i], Quaternion(frame['rotation'][i]))
        np.testing.assert_allclose(ours.corners(), box.corners(), atol=2e-5)
        np.testing.assert_allclose(frame['velocity'][i], box.velocity[:2], atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(frame['rotation'][i]), 1, atol=1e-9)


def test_no_boxes_are_fine():
    frame = convert(np.zeros((0, 9)))
    assert frame['rotation'].shape == (0, 4) and devkit_boxes(frame, CLASSES) == []


def test_box_for_the_devkit_is_plain_and_in_its_order():
    box, = devkit_boxes(convert([CAR], scores=[0.5], labels=[1]), CLASSES)
    assert box['translation'] == pytest.approx([10, 20, 1])  # the centre, not mmdet3d's bottom
    assert box['size'] == pytest.approx([2, 4, 1.5])  # width, length, height
    assert box['detection_name'] == 'truck' and box['detection_score'] == 0.5
    assert box['attribute_name'] == 'vehicle.moving' and box['sample_token'] == 'token'
    numbers = [*box['translation'], *box['size'], *box['rotation'], *box['velocity'], box['detection_score']]
    assert {type(number) for number in numbers} == {float}


def test_the_best_500_of_600_boxes_are_kept_best_first():
    scores = np.random.default_rng(0).permutation(600) / 600
    rows = np.tile(CAR, (600, 1))
    rows[:, 0] = np.arange(600)
    frame = convert(rows, scores=scores)
    best = np.argsort(-scores)[:500]
    assert frame['dropped'] == 100
    np.testing.assert_allclose(frame['score'], scores[best], rtol=1e-6)
    np.testing.assert_allclose(frame['translation'][:, 0], best)


@pytest.mark.parametrize('column', range(9))
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_box_that_is_not_finite_is_an_error_with_its_token(column, value):
    row = list(CAR)
    row[column] = value
    with pytest.raises(ValueError, match='sample token: 1 of 2 .*NaN'):
        convert([CAR, row])


@pytest.mark.parametrize('size', [0., np.inf, -1., 1e-300])  # exp(-700) in float32 is 0
def test_boxes_without_extent_are_left_out_and_nan_stays(size):
    wild, nan = list(CAR), list(CAR)
    wild[4], nan[3] = size, np.nan
    found = predict('token', None, [CAR, wild, nan, CAR], [.9, .8, .7, .6], [0, 1, 2, 3]).pred_instances_3d
    boxes, scores, labels, number = without_extent(found.bboxes_3d, found.scores_3d, found.labels_3d)
    assert number == 1 and labels.tolist() == [0, 2, 3] and scores.tolist() == pytest.approx([.9, .7, .6])
    with pytest.raises(FloatingPointError, match='sample token: 1 of 3 .*NaN'):
        to_global('token', boxes, scores, labels, np.eye(4))


def test_dataset_and_metric_take_the_same_poses():
    """What the dataset reads is what the metric takes, made exactly rigid once."""
    rough = np.eye(4)
    rough[:3, :3] = Quaternion([.9, .1, .3, -.2]).normalised.rotation_matrix + 3e-4 * np.eye(3)
    pose = as_pose(rough, 'pose')
    np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(pose, rough, atol=5e-4)
    for matrix in (rough, pose):
        rotation, = convert([CAR], pose=matrix)['rotation']
        assert np.linalg.norm(rotation) == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(as_pose(pose, 'pose'), pose)


def test_other_bad_predictions_are_errors_with_their_token():
    with pytest.raises(ValueError, match='sample token.*score nan'):
        convert([CAR] * 501, scores=[*np.linspace(.1, 1, 500), np.nan])
    with pytest.raises(ValueError, match='sample token.*no extent'):
        convert([[*CAR[:3], 0, *CAR[4:]]])
    with pytest.raises(ValueError, match='sample token.*not a rigid'):
        convert([CAR], pose=np.diag([1.1, 1.1, 1.1, 1]))
    found = predict('token', None, [CAR], [1], [0]).pred_instances_3d
    seven = type(found.bboxes_3d)(torch.ones(1, 7), box_dim=7)
    with pytest.raises(ValueError, match='sample token.*7 dims'):
        to_global('token', seven, found.scores_3d, found.labels_3d, np.eye(4))


@pytest.mark.parametrize('name, still, moving', [
    ('car', 'vehicle.parked', 'vehicle.moving'), ('bus', 'vehicle.stopped', 'vehicle.moving'),
    ('pedestrian', 'pedestrian.standing', 'pedestrian.moving'), ('bicycle', 'cycle.without_rider', 'cycle.with_rider'),
    ('barrier', '', ''), ('traffic_cone', '', '')])
def test_attribute_follows_class_and_speed(name, still, moving):
    assert [guess_attribute(name, speed) for speed in (0., .2, .21, 10.)] == [still, still, moving, moving]


def test_every_class_has_an_attribute_the_devkit_knows():
    from nuscenes.eval.detection.constants import ATTRIBUTE_NAMES, DETECTION_NAMES
    assert {guess_attribute(name, speed) for name in DETECTION_NAMES for speed in (0, 1)} <= {*ATTRIBUTE_NAMES, ''}


def test_result_file_reads_back_and_is_camera_only(tmp_path):
    path = tmp_path / 'new' / 'results_nusc.json'
    boxes = devkit_boxes(convert([CAR]), CLASSES)
    write_results(str(path), [('a', boxes), ('b', [])])
    content = json.loads(path.read_text())
    assert content == dict(meta=CAMERA_META, results=dict(a=boxes, b=[]))
    assert content['meta'] == dict(use_camera=True, use_lidar=False, use_radar=False, use_map=False, use_external=False)


def test_result_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / 'results_nusc.json'
    write_results(str(path), [('a', [])])
    before = path.read_bytes()
    with pytest.raises(ValueError, match='JSON'):
        write_results(str(path), [('a', []), ('b', [dict(detection_score=float('nan'))])])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
