"""Each edge case is there when asked for."""
import numpy as np
import pytest
from nuscenes import NuScenes

from georope.toy import EDGE_CASES
from georope.toy.options import MINI_TRAIN, MINI_VAL


@pytest.fixture(scope='module')
def nusc(edge_toy):
    return NuScenes(version='v1.0-mini', dataroot=str(edge_toy.root), verbose=False)


def frames(nusc, scene_name):
    scene = next(s for s in nusc.scene if s['name'] == scene_name)
    samples = [nusc.get('sample', scene['first_sample_token'])]
    while samples[-1]['next']:
        samples.append(nusc.get('sample', samples[-1]['next']))
    return samples


def annotations(nusc, sample):
    return [nusc.get('sample_annotation', t) for t in sample['anns']]


FULL = (MINI_TRAIN[0], MINI_VAL[0])


def test_all_cases_are_covered_here():
    assert set(EDGE_CASES) == {'empty_frame', 'single_observation', 'zero_points', 'single_frame_scene', 'time_gap',
                               'far_origin'}


@pytest.mark.parametrize('scene', FULL)
def test_empty_frame(nusc, scene):
    counts = [len(s['anns']) for s in frames(nusc, scene)]
    assert counts[1] == 0 and min(counts[0], *counts[2:]) > 10


@pytest.mark.parametrize('scene', FULL)
def test_single_observation_has_no_velocity(nusc, scene):
    first, *later = frames(nusc, scene)
    single = [a for a in annotations(nusc, first) if a['prev'] == a['next'] == '']
    people = [a for a in single if a['category_name'] == 'human.pedestrian.adult' and a['num_lidar_pts'] > 0]
    assert people and np.isnan(nusc.box_velocity(people[0]['token'])).all()
    assert not any(a['instance_token'] == people[0]['instance_token'] for s in later for a in annotations(nusc, s))


@pytest.mark.parametrize('scene', FULL)
def test_zero_points_and_no_pixels(nusc, scene):
    by_instance = {}
    for sample in frames(nusc, scene):
        for annotation in annotations(nusc, sample):
            by_instance.setdefault(annotation['instance_token'], []).append(annotation)
    hidden = [rows for rows in by_instance.values() if len(rows) == 3 and rows[0]['category_name'] == 'vehicle.car'
              and all(r['num_lidar_pts'] == r['num_radar_pts'] == 0 and r['visibility_token'] == '1' for r in rows)]
    assert hidden


def test_single_frame_scene(nusc):
    assert [len(frames(nusc, name)) for name in (*MINI_TRAIN[:2], MINI_VAL[0])] == [4, 1, 4]
    sample, = frames(nusc, MINI_TRAIN[1])
    assert len(sample['anns']) > 10
    assert all(np.isnan(nusc.box_velocity(t)).all() for t in sample['anns'])


@pytest.mark.parametrize('scene', FULL)
def test_time_gap(nusc, scene):
    steps = np.diff([s['timestamp'] for s in frames(nusc, scene)]) * 1e-6
    assert np.abs(steps[:-1] - 0.5).max() < 0.01 and abs(steps[-1] - 2.0) < 0.01
    last = frames(nusc, scene)[-1]
    assert all(np.isnan(nusc.box_velocity(t)).all() for t in last['anns'])  # the devkit's limit is 1.5 s


def test_far_origin(nusc):
    for pose in nusc.ego_pose:
        x, y, _ = pose['translation']
        assert 500_000 < x < 502_000 and 5_400_000 < y < 5_402_000
        assert np.float32(y) != y
