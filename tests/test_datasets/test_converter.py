"""Info files from tables."""
import json
import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdet3d.datasets import NuScenesDataset
from mmdet3d.datasets.convert_utils import post_process_coords
from mmdet3d.structures import LiDARInstance3DBoxes
from nuscenes.utils.geometry_utils import view_points
from pyquaternion import Quaternion
from small_nuscenes import SIX, START, THINGS, thing, write_nuscenes

from georope.datasets import NuScenesCameraDataset
from georope.datasets.camera_labels import box_corners, image_box
from georope.datasets.converter import CLASSES, create_infos, update_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.datasets.tables import NuScenesTables
from georope.visualization.info import load_cameras

ADDED = ('scene_token', 'scene_name', 'prev', 'next', 'frame_idx')
ADDED_TO_IMAGES = ('ego2global', 'timestamp', 'height', 'width')
ADDED_TO_INSTANCES = ('instance_token', 'attr_name')


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    things = [*THINGS, thing((14., -3., 1.), velocity=(2., 1., 3.))]  # this one goes uphill
    return write_nuscenes(tmp_path_factory.mktemp('any root'), images=False, things=things, lidar_tilt=4.)


@pytest.fixture(scope='module')
def files(root):
    return {path.stem.split('_')[-1]: load_infos(path) for path in create_infos(root, 'v1.0-mini')}


def test_splits_order_and_links(files):
    assert set(files) == {'train', 'val'}
    assert files['train']['metainfo']['version'] == 'v1.0-mini'
    assert files['train']['metainfo']['info_version'] == '1.1'
    assert files['train']['metainfo']['categories']['animal'] == -1
    entries = files['train']['data_list']
    assert [entry['token'] for entry in entries] == ['scene-0061-0', 'scene-0061-1', 'scene-0061-2']
    assert [entry['frame_idx'] for entry in entries] == [0, 1, 2]
    assert [entry['prev'] for entry in entries] == ['', 'scene-0061-0', 'scene-0061-1']
    assert [entry['next'] for entry in entries] == ['scene-0061-1', 'scene-0061-2', '']
    assert {entry['scene_name'] for entry in files['val']['data_list']} == {'scene-0103'}
    assert [entry['timestamp'] for entry in entries] == [START, START + .5, START + 1]


def test_camera_fields(files):
    image = files['val']['data_list'][1]['images']['CAM_FRONT_LEFT']
    assert image['img_path'] == 'scene-0103-1__CAM_FRONT_LEFT.jpg'
    assert (image['height'], image['width']) == (180, 320)
    assert image['timestamp'] == pytest.approx(START + 1000.5 - .04, abs=1e-6)
    assert [*files['val']['data_list'][1]['images']] == list(SIX)


def devkit_box(tables, annotation, sample_data):
    """A box in a sensor's frame, step by step through the devkit's own Box."""
    box = tables.get_box(annotation)
    for record in (tables.get('ego_pose', sample_data['ego_pose_token']),
                   tables.get('calibrated_sensor', sample_data['calibrated_sensor_token'])):
        box.translate(-np.array(record['translation']))
        box.rotate(Quaternion(record['rotation']).inverse)
    return box


def test_boxes_are_the_devkits(root, files):
    tables = NuScenesTables(root, 'v1.0-mini')
    for entry in files['train']['data_list']:
        sample = tables.get('sample', entry['token'])
        lidar = tables.get('sample_data', sample['data']['LIDAR_TOP'])
        assert len(entry['instances']) == len(sample['anns'])
        for instance, token in zip(entry['instances'], sample['anns']):
            box = devkit_box(tables, token, lidar)
            width, length, height = box.wlh
            expected = [*box.center, length, width, height, box.orientation.yaw_pitch_roll[0]]
            assert np.allclose(instance['bbox_3d'], expected, atol=1e-9)
            velocity = np.array([*tables.box_velocity(token)[:2], 0.])  # mmdet3d's: the horizontal motion, turned
            for record in (tables.get('ego_pose', lidar['ego_pose_token']),
                           tables.get('calibrated_sensor', lidar['calibrated_sensor_token'])):
                velocity = Quaternion(record['rotation']).inverse.rotation_matrix @ velocity
            assert np.allclose(instance['velocity'], velocity[:2], atol=1e-9, equal_nan=True)
            assert instance['instance_token'] == tables.get('sample_annotation', token)['instance_token']
        lidar2global = np.array(entry['ego2global']) @ np.array(entry['lidar_points']['lidar2ego'])
        for name, labels in entry['cam_instances'].items():
            image = entry['images'][name]
            global2cam = np.linalg.inv(np.array(image['ego2global']) @ np.array(image['cam2ego']))
            assert np.allclose(image['lidar2cam'], global2cam @ lidar2global, atol=1e-9)
            by_center = {tuple(np.round(label['bbox_3d'][:3], 6)): label for label in labels}
            for token in sample['anns']:
                box = devkit_box(tables, token, tables.get('sample_data', sample['data'][name]))
                label = by_center.pop(tuple(np.round(box.center, 6)), None)
                if label is None:
                    continue
                pixel = view_points(box.center[:, None], np.array(image['cam2img']), True)[:2, 0]
                assert np.allclose(label['center_2d'], pixel, atol=1e-6)
                assert label['depth'] == pytest.approx(box.center[2])
                width, length, height = box.wlh
                yaw = -box.orientation.yaw_pitch_roll[0]
                assert np.allclose(label['bbox_3d'][3:], [length, height, width, yaw], atol=1e-9)
            assert not by_center


def test_flags_attributes_and_unknown_velocity(files):
    first, second = (files['train']['data_list'][i]['instances'] for i in (0, 1))
    by_size = {round(item['bbox_3d'][3], 2): item for item in first}
    assert (by_size[4]['bbox_label'], by_size[4]['attr_name']) == (CLASSES.index('car'), 'vehicle.moving')
    assert [by_size[size]['bbox_3d_isvalid'] for size in (.4, .5)] == [False, True]  # no point, one radar point
    assert by_size[1]['bbox_label'] == by_size[1]['bbox_label_3d'] == -1  # an animal
    assert by_size[.4]['attr_name'] == ''
    once = next(item for item in second if item['bbox_3d'][3] == 7)
    assert np.isnan(once['velocity']).all()


def test_no_camera_label_with_the_centre_behind_the_camera(tmp_path):
    """A truck beside the ego reaches into the view of the front camera."""
    truck = thing((-1., 1.5, 1.), size=(2.5, 8., 3.), category='vehicle.truck')
    write_nuscenes(tmp_path, things=[truck], images=False, speed=0.)
    (entry, *_) = load_infos(create_infos(tmp_path, 'v1.0-mini')[0])['data_list']
    lidar2cam = np.array(entry['images']['CAM_FRONT']['lidar2cam'])
    corners = LiDARInstance3DBoxes([entry['instances'][0]['bbox_3d']], origin=(.5, .5, .5)).corners.numpy()[0]
    assert image_box(corners @ lidar2cam[:3, :3].T + lidar2cam[:3, 3],
                     np.array(entry['images']['CAM_FRONT']['cam2img']), 320, 180) is not None
    assert entry['cam_instances']['CAM_FRONT'] == []
    assert all(label['depth'] > 0 for labels in entry['cam_instances'].values() for label in labels)


@pytest.mark.parametrize('yaw', [0., np.pi / 2, -2.])
def test_velocity_is_turned_from_global_to_lidar(tmp_path, yaw):
    """An object that moves along global x, whatever the ego's heading: in the LiDAR frame (x right, y forward)."""
    along_x = Quaternion(axis=(0, 0, 1), radians=-yaw).rotate(np.array([1., 0., 0.]))
    write_nuscenes(tmp_path, things=[thing((10., 0., 0.), velocity=along_x)], yaw=yaw, images=False, cameras=SIX[:1])
    entry = load_infos(create_infos(tmp_path, 'v1.0-mini')[0])['data_list'][1]
    expected = Quaternion(axis=(0, 0, 1), radians=np.pi / 2 - yaw).rotate(np.array([1., 0., 0.]))
    assert np.allclose(entry['instances'][0]['velocity'], expected[:2], atol=1e-6)


def test_cameras_40_ms_apart_see_the_ego_motion(tmp_path):
    """At 10 m/s the ego is .4 m further; lidar2cam goes through both ego poses, so it says so."""
    cameras = ('CAM_FRONT', 'CAM_FRONT_LATE')
    write_nuscenes(tmp_path, cameras=cameras, camera_delay={'CAM_FRONT': .04}, speed=10., images=False)
    table = tmp_path / 'v1.0-mini' / 'calibrated_sensor.json'
    lidar, camera, other = json.loads(table.read_text())
    other.update({key: camera[key] for key in ('translation', 'rotation')})  # both cameras at one position
    table.write_text(json.dumps([lidar, camera, other]))
    images = load_infos(create_infos(tmp_path, 'v1.0-mini')[0])['data_list'][1]['images']
    early, late = (np.array(images[name]['lidar2cam']) for name in cameras)
    assert np.allclose(early[:3, :3], late[:3, :3])
    assert np.linalg.norm(early[:3, 3] - late[:3, 3]) == pytest.approx(.4, abs=1e-5)


def test_test_split_without_annotation_tables(tmp_path):
    write_nuscenes(tmp_path, scenes=[('scene-0077', 2)], annotations=False, version='v1.0-test', images=False)
    (file, ) = create_infos(tmp_path, 'v1.0-test')
    assert file == tmp_path / 'nuscenes_infos_test.pkl'
    infos = load_infos(file)
    assert len(infos['data_list']) == 2
    assert all(entry['instances'] == [] and 'cam_instances' not in entry for entry in infos['data_list'])


def test_missing_tables_are_listed(tmp_path):
    write_nuscenes(tmp_path, annotations=False, images=False)
    with pytest.raises(FileNotFoundError, match='lacks category.json, attribute.json, instance.json, sample_a'):
        create_infos(tmp_path, 'v1.0-mini')
    with pytest.raises(FileNotFoundError, match=r'v1.0-trainval does not exist. Versions under .*: v1.0-mini\.'):
        create_infos(tmp_path, 'v1.0-trainval')


def test_custom_splits(tmp_path):
    write_nuscenes(tmp_path, version='v1.0-own', scenes=[('a', 2), ('b', 1)], images=False, cameras=SIX[:2])
    with pytest.raises(ValueError, match='splits.json'):
        create_infos(tmp_path, 'v1.0-own')
    (tmp_path / 'v1.0-own' / 'splits.json').write_text('{"train": ["a"], "some": ["b", "a"]}')
    files = create_infos(tmp_path, 'v1.0-own', tmp_path / 'out')
    assert [file.name for file in files] == ['nuscenes_infos_train.pkl', 'nuscenes_infos_some.pkl']
    assert [entry['token'] for entry in load_infos(files[1])['data_list']] == ['a-0', 'a-1', 'b-0']
    (tmp_path / 'v1.0-own' / 'splits.json').write_text('{"train": ["c"]}')
    with pytest.raises(ValueError, match=r"train names scenes that are not in the tables: \['c'\]"):
        create_infos(tmp_path, 'v1.0-own')


def test_update_adds_what_is_missing(root, files, tmp_path):
    plain = pickle.loads(pickle.dumps(files['train']))
    for entry in plain['data_list']:
        for key in ADDED:
            del entry[key]
        for image in entry['images'].values():
            for key in ADDED_TO_IMAGES:
                del image[key]
        for instance in entry['instances']:
            for key in ADDED_TO_INSTANCES:
                del instance[key]
    plain['data_list'].reverse()
    file = save_infos(plain, tmp_path / 'some_infos.pkl')
    assert update_infos([file], root, 'v1.0-mini') == [file]
    updated = load_infos(file)
    # through json, where NaN equals NaN as text
    expected = [json.dumps(entry, sort_keys=True) for entry in files['train']['data_list']]
    assert [json.dumps(entry, sort_keys=True) for entry in updated['data_list']] == expected
    assert [path.name for path in tmp_path.iterdir()] == ['some_infos.pkl']

    plain['data_list'][0]['instances'][0]['bbox_3d'][0] += 1
    with pytest.raises(ValueError, match=r'some_infos.pkl: sample scene-0061-2: .*5 cm of instance 0'):
        update_infos([save_infos(plain, file)], root, 'v1.0-mini')
    plain['data_list'][0]['token'] = 'elsewhere'
    with pytest.raises(ValueError, match='sample elsewhere is not in'):
        update_infos([save_infos(plain, file)], root, 'v1.0-mini')


def test_command(root, tmp_path, monkeypatch, capsys):
    tool = Path(__file__).resolve().parents[2] / 'tools' / 'create_data.py'
    command = [str(tool), '--root-path', str(root), '--version', 'v1.0-mini']
    monkeypatch.setattr(sys, 'argv', [*command, '--out-dir', str(tmp_path)])
    runpy.run_path(str(tool), run_name='__main__')
    out, err = capsys.readouterr()
    assert '1 scenes, 3 frames' in out and '3/3' in err  # the progress
    file = tmp_path / 'nuscenes_infos_train.pkl'
    before = load_infos(file)
    monkeypatch.setattr(sys, 'argv', [*command, '--update', str(file)])
    runpy.run_path(str(tool), run_name='__main__')
    assert json.dumps(before, sort_keys=True) == json.dumps(load_infos(file), sort_keys=True)


def test_command_as_in_mmdet3d(tmp_path, monkeypatch, capsys):
    """Both parts of version v1.0, those that are there, named by --extra-tag; a root below the home folder."""
    monkeypatch.setenv('HOME', str(tmp_path))
    for version, scene in (('v1.0-trainval', 'scene-0001'), ('v1.0-test', 'scene-0077')):
        write_nuscenes(tmp_path / 'data', scenes=[(scene, 1)], images=False, version=version)
    tool = Path(__file__).resolve().parents[2] / 'tools' / 'create_data.py'
    monkeypatch.setattr(sys, 'argv', [str(tool), 'nuscenes', '--root-path', '~/data', '--out-dir', '~/out',
                                      '--extra-tag', 'part'])
    runpy.run_path(str(tool), run_name='__main__')
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
        'part_infos_test.pkl', 'part_infos_train.pkl']
    monkeypatch.setattr(sys, 'argv', [str(tool), 'kitti', '--root-path', '~/data'])
    with pytest.raises(SystemExit):
        runpy.run_path(str(tool), run_name='__main__')
    assert 'nuscenes' in capsys.readouterr().err.splitlines()[-1]


def test_images_elsewhere_keep_their_path(tmp_path):
    """Below the root, but not in samples/CAMERA: the dataset finds them by the info file's own path."""
    root = write_nuscenes(tmp_path, cameras=SIX[:2])
    (root / 'pictures/day 1').mkdir(parents=True)
    table = root / 'v1.0-mini/sample_data.json'
    records = json.loads(table.read_text())
    for record in records:
        if record['filename'].startswith('samples/CAM_FRONT/'):
            moved = f'pictures/day 1/{Path(record["filename"]).name}'
            (root / record['filename']).rename(root / moved)
            record['filename'] = moved
    table.write_text(json.dumps(records))
    (file, _) = create_infos(root, 'v1.0-mini')
    entry = load_infos(file)['data_list'][0]
    assert entry['images']['CAM_FRONT']['img_path'] == 'pictures/day 1/scene-0061-0__CAM_FRONT.jpg'
    assert entry['images']['CAM_FRONT_RIGHT']['img_path'] == 'scene-0061-0__CAM_FRONT_RIGHT.jpg'
    paths = NuScenesCameraDataset(str(file), str(root))[0]['img_path']
    assert all(Path(path).is_file() for path in paths)
    images, _, names = load_cameras(entry, str(root))
    assert names == [*SIX[:2]] and len(images) == 2


def test_mmdet3d_reads_the_file(tmp_path):
    """mmdet3d's own dataset class takes the file, and its boxes have the devkit's corners."""
    root = write_nuscenes(tmp_path, images=False)
    create_infos(root, 'v1.0-mini')
    prefix = {name: f'samples/{name}' for name in SIX}
    dataset = NuScenesDataset(
        data_root=str(root), ann_file='nuscenes_infos_train.pkl', data_prefix=prefix, pipeline=[],
        modality=dict(use_camera=True, use_lidar=False), use_valid_flag=True)
    tables = NuScenesTables(root, 'v1.0-mini')
    info = dataset.get_data_info(1)
    assert info['images']['CAM_BACK']['img_path'] == f'{root}/samples/CAM_BACK/scene-0061-1__CAM_BACK.jpg'
    boxes = info['ann_info']['gt_bboxes_3d']
    sample = tables.get('sample', info['token'])
    lidar = tables.get('sample_data', sample['data']['LIDAR_TOP'])
    tokens = [token for token in sample['anns']
              if sum(tables.get('sample_annotation', token)[f'num_{kind}_pts'] for kind in ('lidar', 'radar'))]
    assert len(boxes) == len(tokens)
    for corners, token in zip(boxes.corners.numpy(), tokens):
        expected = devkit_box(tables, token, lidar).corners().T
        distances = np.linalg.norm(corners[:, None] - expected[None], axis=-1)
        assert distances.min(0).max() < 1e-4 and distances.min(1).max() < 1e-4


@given(st.tuples(st.floats(-20, 20), st.floats(-5, 5), st.floats(.1, 40)), st.tuples(*[st.floats(.2, 12)] * 3),
       st.floats(-3, 3), st.floats(-.2, .2))
def test_image_box_is_mmdet3ds(center, size, yaw, tilt):
    """The same box as mmdet3d's, for the image size that mmdet3d assumes."""
    cam2img = np.array([[1266., 0, 816], [0, 1266, 491], [0, 0, 1]])
    turn = Quaternion(axis=(1, 0, 0), radians=tilt) * Quaternion(axis=(0, 1, 0), radians=yaw)
    (corners, ) = box_corners(np.array([center]), np.array([size]), turn.rotation_matrix[None])
    front = corners[corners[:, 2] > 0]
    expected = post_process_coords(view_points(front.T, cam2img, True).T[:, :2].tolist())
    found = image_box(corners, cam2img, 1600, 900)
    assert (found is None) == (expected is None)
    if found:
        assert np.allclose(found, expected, atol=1e-6)


def test_a_half_written_file_is_never_seen(tmp_path, monkeypatch):
    file = save_infos(dict(metainfo=dict(info_version='1.1'), data_list=[]), tmp_path / 'infos.pkl')
    monkeypatch.setattr(pickle, 'dump', lambda *args, **kwargs: (_ for _ in ()).throw(OSError('disk full')))
    with pytest.raises(OSError, match='disk full'):
        save_infos(dict(metainfo={}, data_list=[1]), file)
    assert load_infos(file)['data_list'] == [] and [*tmp_path.iterdir()] == [file]
