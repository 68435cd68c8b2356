"""The converter against an info file that mmdetection3d ships: tables rebuilt from it must convert back to it."""
import json

import numpy as np
import pytest
from pyquaternion import Quaternion

from georope.datasets.converter import CLASSES, create_infos
from georope.datasets.info_file import load_infos

CATEGORIES = dict(zip(CLASSES, (
    'vehicle.car', 'vehicle.truck', 'vehicle.trailer', 'vehicle.bus.rigid', 'vehicle.construction', 'vehicle.bicycle',
    'vehicle.motorcycle', 'human.pedestrian.adult', 'movable_object.trafficcone', 'movable_object.barrier')))


def orthonormal(matrix):
    """The published matrices are float32."""
    u, _, v = np.linalg.svd(matrix[:3, :3])
    exact = matrix.copy()
    exact[:3, :3] = u @ v
    return exact


def record(matrix):
    return dict(translation=matrix[:3, 3].tolist(), rotation=Quaternion(matrix=orthonormal(matrix)).elements.tolist())


@pytest.fixture(scope='module')
def published_and_ours(shared, tmp_path_factory):
    (file, ) = (shared / 'data' / 'nuscenes_frame').glob('*.pkl')
    (entry, ) = load_infos(file)['data_list']
    root = tmp_path_factory.mktemp('published')
    lidar2ego, ego2global = (np.array(m) for m in (entry['lidar_points']['lidar2ego'], entry['ego2global']))
    lidar2global = orthonormal(ego2global) @ orthonormal(lidar2ego)
    sensors = {'LIDAR_TOP': (lidar2ego, ego2global, None, entry['timestamp'], entry['lidar_points']['lidar_path'])}
    for name, image in entry['images'].items():
        cam2ego = orthonormal(np.array(image['cam2ego']))
        pose = lidar2global @ np.linalg.inv(orthonormal(np.array(image['lidar2cam']))) @ np.linalg.inv(cam2ego)
        sensors[name] = (cam2ego, pose, image['cam2img'], image['timestamp'], image['img_path'])
    tables = dict(
        sensor=[dict(token=name, channel=name, modality='camera' if 'CAM' in name else 'lidar') for name in sensors],
        calibrated_sensor=[dict(token=name, sensor_token=name, camera_intrinsic=s[2], **record(s[0]))
                           for name, s in sensors.items()],
        ego_pose=[dict(token=name, timestamp=0, **record(s[1])) for name, s in sensors.items()],
        scene=[dict(token='scene', name='scene-0061', nbr_samples=1, first_sample_token=entry['token'])],
        sample=[dict(token=entry['token'], scene_token='scene', timestamp=round(entry['timestamp'] * 1e6), prev='',
                     next='')],
        sample_data=[dict(token=f'{name}-data', sample_token=entry['token'], ego_pose_token=name,
                          calibrated_sensor_token=name, timestamp=round(s[3] * 1e6), is_key_frame=True,
                          filename=f'samples/{name}/{s[4]}', height=900, width=1600) for name, s in sensors.items()],
        category=[dict(token=name, name=category) for name, category in CATEGORIES.items()],
        attribute=[], instance=[], sample_annotation=[])
    for i, item in enumerate(entry['instances']):
        name = CLASSES[item['bbox_label']] if item['bbox_label'] >= 0 else 'other'
        if name == 'other':
            tables['category'].append(dict(token='other', name='animal'))
        length, width, height = item['bbox_3d'][3:6]
        tables['instance'].append(dict(token=f'i{i}', category_token=name))
        tables['sample_annotation'].append(dict(
            token=f'a{i}', instance_token=f'i{i}', sample_token=entry['token'], attribute_tokens=[], prev='', next='',
            translation=(lidar2global @ [*item['bbox_3d'][:3], 1])[:3].tolist(), size=[width, length, height],
            rotation=global_yaw(lidar2global, item['bbox_3d'][6]).elements.tolist(),
            num_lidar_pts=int(item['num_lidar_pts']), num_radar_pts=int(item['num_radar_pts'])))
    folder = root / 'v1.0-mini'
    folder.mkdir()
    for name, table in tables.items():
        (folder / f'{name}.json').write_text(json.dumps(table))
    (ours, ) = load_infos(create_infos(root, 'v1.0-mini')[0])['data_list']
    return entry, ours


def global_yaw(lidar2global, yaw):
    """The rotation about global z whose yaw in the LiDAR frame is ``yaw``; annotations have no other rotations."""
    lidar = Quaternion(matrix=orthonormal(lidar2global))
    angle = yaw + lidar.yaw_pitch_roll[0]
    for _ in range(20):
        turned = Quaternion(axis=(0, 0, 1), radians=angle)
        found = (lidar.inverse * turned).yaw_pitch_roll[0]
        angle += (yaw - found + np.pi) % (2 * np.pi) - np.pi
    return turned


def close(ours, published, tolerance):
    assert np.abs(np.array(ours, dtype=float) - np.array(published, dtype=float)).max() < tolerance


def test_calibrations(published_and_ours):
    published, ours = published_and_ours
    assert set(published) - set(ours) == set()
    close(ours['ego2global'], published['ego2global'], 1e-6)
    close(ours['lidar_points']['lidar2ego'], published['lidar_points']['lidar2ego'], 1e-6)
    assert ours['lidar_points']['lidar_path'] == published['lidar_points']['lidar_path']
    assert [*ours['images']] == [*published['images']]
    for name, image in published['images'].items():
        assert set(image) - set(ours['images'][name]) == set()
        assert ours['images'][name]['cam2img'] == image['cam2img']
        assert ours['images'][name]['timestamp'] == image['timestamp']
        assert ours['images'][name]['img_path'] == image['img_path']
        close(ours['images'][name]['lidar2cam'], image['lidar2cam'], 1e-5)
        close(ours['images'][name]['cam2ego'], image['cam2ego'], 1e-6)


def test_boxes(published_and_ours):
    published, ours = published_and_ours
    assert len(ours['instances']) == len(published['instances'])
    for mine, theirs in zip(ours['instances'], published['instances']):
        assert set(theirs) - set(mine) == set()
        close(mine['bbox_3d'][:6], theirs['bbox_3d'][:6], 1e-5)
        assert abs(np.sin((mine['bbox_3d'][6] - theirs['bbox_3d'][6]) / 2)) < 1e-6
        for key in ('bbox_label', 'bbox_label_3d', 'bbox_3d_isvalid', 'num_lidar_pts', 'num_radar_pts'):
            assert mine[key] == theirs[key]


def test_camera_labels(published_and_ours):
    published, ours = published_and_ours
    compared = 0
    for name, labels in published['cam_instances'].items():
        assert len(ours['cam_instances'][name]) == len(labels)
        for mine, theirs in zip(ours['cam_instances'][name], labels):
            assert set(mine) == set(theirs)
            # float32 poses at 1200 m, and the projection of what is near
            close(mine['bbox'], theirs['bbox'], 0.1)
            close(mine['center_2d'], theirs['center_2d'], 0.1)
            close(mine['depth'], theirs['depth'], 1e-3)
            close(mine['bbox_3d'][:6], theirs['bbox_3d'][:6], 1e-3)
            assert abs(np.sin((mine['bbox_3d'][6] - theirs['bbox_3d'][6]) / 2)) < 1e-3
            assert mine['bbox_label'] == mine['bbox_label_3d'] == theirs['bbox_label']
            assert mine['bbox_3d_isvalid'] == theirs['bbox_3d_isvalid']
            compared += 1
    assert compared == 84
