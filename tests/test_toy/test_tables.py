"""The tables refer to each other and to files as nuScenes' do."""
import re
from collections import Counter

import cv2
import numpy as np
import pytest

from georope.toy import tables

REFERENCES = dict(
    calibrated_sensor=dict(sensor_token='sensor'),
    instance=dict(category_token='category', first_annotation_token='sample_annotation',
                  last_annotation_token='sample_annotation'),
    map=dict(log_tokens='log'),
    sample=dict(scene_token='scene', prev='sample', next='sample'),
    sample_annotation=dict(sample_token='sample', instance_token='instance', visibility_token='visibility',
                           attribute_tokens='attribute', prev='sample_annotation', next='sample_annotation'),
    sample_data=dict(sample_token='sample', ego_pose_token='ego_pose', calibrated_sensor_token='calibrated_sensor',
                     prev='sample_data', next='sample_data'),
    scene=dict(log_token='log', first_sample_token='sample', last_sample_token='sample'))


@pytest.fixture(params=['toy', 'edge_toy'])
def any_toy(request):
    return request.getfixturevalue(request.param)


def rows(toy, name):
    return {row['token']: row for row in getattr(toy, name)}


def test_all_thirteen_tables_have_unique_tokens(any_toy):
    for name in tables.TABLES:
        assert len(getattr(any_toy, name)) > 0, name
        assert len(rows(any_toy, name)) == len(getattr(any_toy, name)), name
        if name != 'visibility':
            assert all(re.fullmatch('[0-9a-f]{32}', token) for token in rows(any_toy, name))
    assert len(list((any_toy.root / 'v1.0-mini').iterdir())) == 13


def test_every_token_resolves(any_toy):
    for name, columns in REFERENCES.items():
        for column, target in columns.items():
            known = rows(any_toy, target)
            for row in getattr(any_toy, name):
                tokens = row[column] if isinstance(row[column], list) else [row[column]]
                assert all(t in known or (t == '' and column in ('prev', 'next')) for t in tokens), (name, column)


def test_chains_run_both_ways_in_time_order(any_toy):
    samples = rows(any_toy, 'sample')
    for name in ('sample', 'sample_data', 'sample_annotation'):
        table = rows(any_toy, name)
        for row in table.values():
            if not row['next']:
                continue
            after = table[row['next']]
            assert after['prev'] == row['token']
            times = [r['timestamp'] if 'timestamp' in r else samples[r['sample_token']]['timestamp']
                     for r in (row, after)]
            assert times[0] < times[1]
            if name == 'sample_annotation':
                assert after['instance_token'] == row['instance_token']
            if name == 'sample_data':
                assert after['calibrated_sensor_token'] == row['calibrated_sensor_token']


def test_scenes_and_instances_count_their_members(any_toy):
    per_scene = Counter(s['scene_token'] for s in any_toy.sample)
    samples, annotations = rows(any_toy, 'sample'), rows(any_toy, 'sample_annotation')
    for scene in any_toy.scene:
        assert scene['nbr_samples'] == per_scene[scene['token']]
        assert samples[scene['first_sample_token']]['prev'] == samples[scene['last_sample_token']]['next'] == ''
    per_instance = Counter(a['instance_token'] for a in any_toy.sample_annotation)
    assert set(per_instance) == {i['token'] for i in any_toy.instance}
    for instance in any_toy.instance:
        assert instance['nbr_annotations'] == per_instance[instance['token']]
        assert annotations[instance['first_annotation_token']]['prev'] == ''
        assert annotations[instance['last_annotation_token']]['next'] == ''


def test_every_key_frame_has_every_sensor_once_and_its_file(toy):
    channels = [s['channel'] for s in toy.sensor]
    calibrated, sensors = rows(toy, 'calibrated_sensor'), rows(toy, 'sensor')
    found = Counter()
    for data in toy.sample_data:
        channel = sensors[calibrated[data['calibrated_sensor_token']]['sensor_token']]['channel']
        assert f'/{channel}/' in data['filename']
        path = toy.root / data['filename']
        if data['is_key_frame']:
            found[data['sample_token'], channel] += 1
            assert path.is_file()
        if channel == 'LIDAR_TOP':
            points = np.fromfile(path, np.float32).reshape(-1, 5)
            assert len(points) > 1000 and np.isfinite(points).all()
        elif data['is_key_frame']:
            assert cv2.imread(str(path)).shape == (data['height'], data['width'], 3)
        else:
            assert not path.exists()  # as in nuScenes' key frame download
    assert found == {(s['token'], c): 1 for s in toy.sample for c in channels}


def test_sweeps_lie_between_key_frames(toy):
    sweeps = [d for d in toy.sample_data if not d['is_key_frame']]
    assert len(sweeps) == 2 * 2 * 7  # one in each gap of three frames, two scenes, seven sensors
    for sweep in sweeps:
        table = rows(toy, 'sample_data')
        assert table[sweep['prev']]['is_key_frame'] and table[sweep['next']]['is_key_frame']
        assert sweep['filename'].startswith('sweeps/')


def test_quaternions_are_unit_and_calibration_differs_between_logs(toy):
    for row in toy.ego_pose + toy.calibrated_sensor + toy.sample_annotation:
        assert abs(np.linalg.norm(row['rotation']) - 1) < 1e-9
    by_sensor = {}
    for row in toy.calibrated_sensor:
        by_sensor.setdefault(row['sensor_token'], []).append(row)
    for first, second in by_sensor.values():
        assert first['translation'] != second['translation'] and first['rotation'] != second['rotation']
        assert not first['camera_intrinsic'] or first['camera_intrinsic'] != second['camera_intrinsic']


def test_cameras_fire_at_their_own_time_and_the_ego_car_moves_meanwhile(toy):
    poses, samples = rows(toy, 'ego_pose'), rows(toy, 'sample')
    moved = []
    for data in toy.sample_data:
        assert poses[data['ego_pose_token']]['timestamp'] == data['timestamp']
        if data['is_key_frame'] and data['fileformat'] == 'jpg':
            delay = (samples[data['sample_token']]['timestamp'] - data['timestamp']) * 1e-6
            assert 0 < delay < 0.05
            lidar = next(d for d in toy.sample_data if d['is_key_frame'] and d['fileformat'] == 'pcd'
                         and d['sample_token'] == data['sample_token'])
            step = np.subtract(poses[lidar['ego_pose_token']]['translation'],
                               poses[data['ego_pose_token']]['translation'])
            moved.append(np.linalg.norm(step) / delay)
    assert 1 < min(moved) and max(moved) < 16  # m/s


def test_attributes_fit_the_category(toy):
    categories = {i['token']: rows(toy, 'category')[i['category_token']]['name'] for i in toy.instance}
    names = {a['token']: a['name'] for a in toy.attribute}
    seen = set()
    for annotation in toy.sample_annotation:
        category = categories[annotation['instance_token']]
        attribute = [names[t] for t in annotation['attribute_tokens']]
        seen.update(attribute)
        if category.startswith('movable_object'):
            assert attribute == []
        else:
            group = 'cycle' if category in ('vehicle.bicycle', 'vehicle.motorcycle') else \
                'pedestrian' if category.startswith('human') else 'vehicle'
            assert len(attribute) == 1 and attribute[0].startswith(group + '.')
    assert seen >= {'vehicle.moving', 'vehicle.parked', 'cycle.with_rider', 'cycle.without_rider',
                    'pedestrian.moving', 'pedestrian.standing'}


def test_visibility_levels():
    assert [tables.visibility_token(v, 100) for v in (0, 40, 41, 60, 61, 80, 81, 100)] == list('11223344')
    assert tables.visibility_token(0, 0) == '1'
