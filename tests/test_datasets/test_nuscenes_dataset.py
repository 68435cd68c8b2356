"""The camera dataset: order, cameras, calibrations, which objects, and what it refuses."""
import os
import pickle
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import ConcatDataset, RepeatDataset, pseudo_collate
from small_nuscenes import CLASSES, SIX, START, TEST, TRAIN, write_nuscenes

from georope.datasets import NuScenesCameraDataset
from georope.datasets.calibration import CalibrationError
from georope.datasets.converter import create_infos
from georope.datasets.info_file import save_infos
from georope.registry import DATASETS

TOKENS = ['scene-0061-0', 'scene-0061-1', 'scene-0061-2', 'scene-0553-0', 'scene-0553-1']


def tokens(dataset):
    return [dataset.get_data_info(i)['token'] for i in range(len(dataset))]


def each_camera(infos):
    return [image for entry in infos['data_list'] for image in entry['images'].values()]


# Order, scenes and time


@pytest.mark.parametrize('serialize_data', [True, False])
def test_order_does_not_depend_on_the_file(infos, build, serialize_data):
    random.Random(0).shuffle(infos['data_list'])
    dataset = build(infos, serialize_data=serialize_data)
    assert tokens(dataset) == TOKENS
    frames = [dataset.get_data_info(i) for i in range(5)]
    assert [frame['prev_exists'] for frame in frames] == [False, True, True, False, True]
    assert [frame['frame_idx'] for frame in frames] == [0, 1, 2, 0, 1]
    assert [frame['sample_idx'] for frame in frames] == [0, 1, 2, 3, 4]
    assert dataset.get_data_info(-1)['token'] == TOKENS[-1] and dataset.get_data_info(-1)['prev_exists']


def test_scenes_are_ordered_by_their_first_timestamp(infos, build):
    for entry in infos['data_list'][:3]:
        entry['timestamp'] += 1e4
        for image in entry['images'].values():
            image['timestamp'] += 1e4
    assert tokens(build(infos)) == TOKENS[3:] + TOKENS[:3]


def test_timestamps_are_seconds_since_the_scene_start(infos, build):
    """In float32 the steps of absolute times are 128 s."""
    dataset = build(infos)
    times = [dataset.get_data_info(i)['timestamp'] for i in range(5)]
    assert all(type(time) is float for time in times)
    assert np.allclose(times, [0, .5, 1, 0, .5], atol=1e-6, rtol=0)
    camera = dataset.get_data_info(4)['images']['CAM_BACK']
    assert camera['timestamp'] == pytest.approx(.46, abs=1e-6)


def test_subsets_and_wrappers_keep_the_order(infos, build):
    dataset = build(infos, indices=[0, 2, 4], serialize_data=True)
    assert tokens(dataset) == [TOKENS[0], TOKENS[2], TOKENS[4]]
    assert [dataset.get_data_info(i)['prev_exists'] for i in range(3)] == [False, True, False]
    whole = build(infos, pipeline=TEST, test_mode=True)
    assert [whole.get_subset([3, 4])[i]['data_samples'].token for i in range(2)] == TOKENS[3:]
    both = ConcatDataset([whole, whole.get_subset([1])])
    assert both[5]['data_samples'].token == TOKENS[1] and not both[5]['data_samples'].prev_exists
    assert RepeatDataset(whole, 2)[6]['data_samples'].token == TOKENS[1]
    lazy = build(infos, lazy_init=True)
    assert not lazy._fully_initialized and tokens(lazy) == TOKENS and lazy.label_mapping[4] == 2


def test_plain_v2_file(infos, build, tmp_path):
    for entry in infos['data_list']:
        for key in ('scene_token', 'scene_name', 'prev', 'next', 'frame_idx'):
            del entry[key]
        for image in entry['images'].values():
            for key in ('ego2global', 'height', 'width'):
                del image[key]
    infos['data_list'].reverse()
    with pytest.warns(UserWarning, match='no scene tokens') as caught:
        dataset = build(infos, pipeline=TRAIN)
    assert len(caught) == 1
    assert 'tools/create_data.py --root-path <data root> --version <' in str(caught[0].message)
    assert f'--update {tmp_path}/infos.pkl`' in str(caught[0].message)
    assert tokens(dataset) == TOKENS
    assert not any(dataset.get_data_info(i)['prev_exists'] for i in range(5))
    assert dataset[4]['inputs']['img'].shape == (6, 3, 96, 256)


# Cameras and calibrations


@pytest.mark.parametrize('cameras', [SIX[3:4], ('CAM_LEFT', 'CAM_FRONT', 'CAM_A'), (*SIX[::-1], 'CAM_TOP')])
def test_any_number_of_cameras_in_a_fixed_order(tmp_path, cameras):
    """One, three and seven cameras; no LiDAR file is there."""
    root = write_nuscenes(tmp_path, cameras=cameras)
    assert not [*root.glob('samples/LIDAR_TOP/*')]
    file, _ = create_infos(root, 'v1.0-mini')
    with open(file, 'rb') as stream:
        infos = pickle.load(stream)
    for i, entry in enumerate(infos['data_list']):
        names = sorted(entry['images'], key=cameras.index, reverse=bool(i))
        entry['images'] = {name: entry['images'][name] for name in names}
    save_infos(infos, file)
    dataset = NuScenesCameraDataset(str(file), str(root), TRAIN, test_mode=False)
    expected = [name for name in SIX if name in cameras] + [name for name in cameras if name not in SIX]
    for i in range(len(dataset)):
        data = dataset[i]
        sample = data['data_samples']
        assert sample.cam_names == expected
        assert data['inputs']['img'].shape == (len(cameras), 3, 96, 256)
        assert sample.lidar2img.shape == (len(cameras), 4, 4) and sample.lidar2img.dtype == np.float64
        assert [Path(path).parent.name for path in sample.img_path] == expected
        assert sample.filename == sample.img_path and len(sample.gt_cameras) == len(cameras)


def test_missing_lidar_points_mean_the_ego_frame(infos, build):
    for entry in infos['data_list']:
        lidar2ego = np.array(entry.pop('lidar_points')['lidar2ego'])
        for image in entry['images'].values():
            image['lidar2cam'] = (np.array(image['lidar2cam']) @ np.linalg.inv(lidar2ego)).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        frame = build(infos).get_data_info(0)
    assert (frame['lidar2global'] == frame['ego2global']).all()


def test_cameras_must_be_the_same_in_all_frames(infos, build):
    del infos['data_list'][3]['images']['CAM_BACK']
    with pytest.raises(ValueError, match=r'infos.pkl: sample scene-0553-0 has the cameras .* all frames need the same'):
        build(infos)


def test_intrinsics_of_all_shapes(infos, build):
    """3x3, 3x4 and 4x4 project alike."""
    points = np.array([[1., 12, .3, 1], [-2, 20, 1, 1]])
    projections = []
    for shape in ((3, 3), (3, 4), (4, 4)):
        for image in each_camera(infos):
            full = np.eye(4)
            full[:3, :3] = np.array(image['cam2img'])[:3, :3]
            image['cam2img'] = full[:shape[0], :shape[1]].tolist()
        pixels = points @ build(infos).get_data_info(0)['lidar2img'][0].T
        projections.append(pixels[:, :2] / pixels[:, 2:3])
    assert (projections[0] == projections[1]).all() and (projections[0] == projections[2]).all()


@pytest.mark.parametrize('key, value, message', [
    ('cam2img', np.eye(2), 'shape'),
    ('cam2img', [[1, 0, 0], [0, float('nan'), 0], [0, 0, 1]], 'not finite'),
    ('cam2img', np.diag([0, 1, 1]), 'singular'),
    ('cam2img', 'K', 'not a matrix'),
    ('lidar2cam', np.zeros((4, 4)), 'not orthonormal'),
    ('lidar2cam', np.diag([1, 1, 1.01, 1]), 'not orthonormal'),
    ('lidar2cam', np.diag([-1, 1, 1, 1]), 'not orthonormal'),
    ('lidar2cam', np.full((4, 4), np.inf), 'not finite'),
    ('lidar2cam', np.eye(4)[::-1], 'last row|not orthonormal'),
    ('cam2ego', np.diag([1, 2, 1, 1]), 'not orthonormal'),
    ('ego2global', np.full((4, 4), np.nan), 'not finite'),
])
def test_impossible_calibrations(infos, build, key, value, message):
    infos['data_list'][1]['images']['CAM_BACK_LEFT'][key] = value
    where = f'infos.pkl: sample scene-0061-1: camera CAM_BACK_LEFT: {key}'
    with pytest.raises(CalibrationError, match=f'{where} .*({message})'):
        build(infos)


def test_impossible_or_missing_poses(infos, build):
    infos['data_list'][2]['ego2global'][0][3] = float('inf')
    with pytest.raises(CalibrationError, match='infos.pkl: sample scene-0061-2: ego2global has .* not finite'):
        build(infos)
    del infos['data_list'][2]['ego2global']
    with pytest.raises(ValueError, match='sample scene-0061-2: ego2global is missing'):
        build(infos)
    del infos['data_list'][1]['images']['CAM_BACK']['lidar2cam']
    with pytest.raises(ValueError, match='sample scene-0061-1: camera CAM_BACK: lidar2cam is missing'):
        build(infos)
    del infos['data_list'][0]['images']
    with pytest.raises(ValueError, match='sample scene-0061-0: images is missing'):
        build(infos)


@pytest.mark.parametrize('missing', [(), ('ego2global', ), ('ego2global', 'timestamp')])
def test_wrong_extrinsics_are_reported(infos, build, missing):
    """Without the cameras' own ego poses the ego may have moved between LiDAR and camera, but not by this much."""
    for image in each_camera(infos):
        for key in missing:
            del image[key]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        build(infos)
    image = infos['data_list'][4]['images']['CAM_FRONT_RIGHT']
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(.3), -np.sin(.3)], [np.sin(.3), np.cos(.3)]]
    image['lidar2cam'] = (turn @ np.array(image['lidar2cam'])).tolist()
    with pytest.warns(UserWarning, match=r'frame scene-0553-1, camera CAM_FRONT_RIGHT: lidar2cam is .* 17.2 degrees'):
        build(infos)


def test_a_pose_that_jumps_is_reported(infos, build):
    entry = infos['data_list'][1]
    entry['ego2global'] = np.eye(4).tolist()  # 2 km away
    with pytest.warns(UserWarning, match='scene-0061-1: the ego moved 22.. m within 0.50 s after frame scene-0061-0'):
        build(infos)


# Objects


def test_annotations(infos, build):
    ann_info = build(infos).get_data_info(1)['ann_info']
    boxes, labels = ann_info['gt_bboxes_3d'], ann_info['gt_labels_3d']
    assert boxes.tensor.shape == (4, 9)  # the cone has no point, the animal no class
    assert sorted(CLASSES[label] for label in labels) == ['barrier', 'car', 'pedestrian', 'truck']
    entry = infos['data_list'][1]
    valid = [item for item in entry['instances'] if item['bbox_3d_isvalid'] and item['bbox_label'] >= 0]
    expected = np.array([item['bbox_3d'] for item in valid])
    assert np.allclose(boxes.gravity_center.numpy(), expected[:, :3], atol=1e-5)
    assert np.allclose(boxes.tensor[:, 3:7].numpy(), expected[:, 3:], atol=1e-5)
    # the truck is seen once: its velocity is unknown, and stays so
    assert boxes.tensor[:, 7:].isnan().all(1).tolist() == [label == CLASSES.index('truck') for label in labels]
    for i, name in enumerate(SIX):
        labels_2d = [item for item in entry['cam_instances'][name] if item['bbox_label'] >= 0]
        expected = np.reshape([item['bbox'] for item in labels_2d], (-1, 4))
        assert np.allclose(ann_info['gt_bboxes'][i], expected, atol=1e-4)
        assert ann_info['depths'][i].shape == (len(labels_2d), )
    assert sum(map(len, ann_info['gt_bboxes'])) > 3


def test_nan_velocity_survives_the_pipeline(infos, build):
    boxes = build(infos, pipeline=TRAIN)[1]['data_samples'].gt_instances_3d.bboxes_3d.tensor
    assert boxes[:, 7:].isnan().any(1).sum() == 1 and not boxes[:, :7].isnan().any()


def test_no_velocities_in_the_file(infos, build):
    for entry in infos['data_list']:
        for item in entry['instances']:
            del item['velocity']
    boxes = build(infos).get_data_info(1)['ann_info']['gt_bboxes_3d'].tensor
    assert len(boxes) == 4 and boxes[:, 7:].isnan().all()


def test_use_valid_flag(infos, build):
    def points(**kwargs):
        return len(build(infos, **kwargs).get_data_info(0)['ann_info']['gt_labels_3d'])

    assert points(use_valid_flag=True) == 3  # the barrier has one radar point
    assert points(use_valid_flag=False) == 4  # and the cone none
    for entry in infos['data_list']:
        for item in entry['instances']:
            del item['bbox_3d_isvalid']
    with pytest.raises(ValueError, match='sample scene-0061-0: instances without bbox_3d_isvalid'):
        build(infos)
    assert points(use_valid_flag=False) == 4


def test_class_subsets(infos, build):
    dataset = build(infos, metainfo=dict(classes=('pedestrian', 'car')))
    ann_info = dataset.get_data_info(1)['ann_info']
    assert sorted(ann_info['gt_labels_3d']) == [0, 1]
    assert {int(label) for labels in ann_info['gt_bboxes_labels'] for label in labels} == {0, 1}
    assert dataset.metainfo['palette'] == [(0, 0, 230), (255, 158, 0)] and dataset.metainfo['version'] == 'v1.0-mini'
    assert dataset.get_cat_ids(1) == {0, 1}
    with pytest.raises(ValueError, match=r"\['lorry'\] are not classes of nuScenes"):
        build(infos, metainfo=dict(classes=('car', 'lorry')))
    del infos['metainfo']['categories']['bus']
    with pytest.raises(ValueError, match=r"infos.pkl has no labels for the classes \['bus'\]"):
        build(infos)


def test_labels_follow_the_file(infos, build):
    """Another order of categories in the file gives the same classes."""
    before = build(infos).get_data_info(1)['ann_info']['gt_labels_3d']
    swap = {0: 7, 7: 0}
    categories = infos['metainfo']['categories']
    categories.update(car=7, pedestrian=0)
    for entry in infos['data_list']:
        for item in [*entry['instances'], *sum(entry['cam_instances'].values(), [])]:
            for key in ('bbox_label', 'bbox_label_3d'):
                item[key] = swap.get(item[key], item[key])
    assert (build(infos).get_data_info(1)['ann_info']['gt_labels_3d'] == before).all()


def test_empty_frames(infos, build):
    """They stay, with arrays of the right shapes, through the whole pipeline."""
    infos['data_list'][1]['instances'] = []
    infos['data_list'][1]['cam_instances'] = {name: [] for name in SIX}
    dataset = build(infos, pipeline=TRAIN)
    assert tokens(dataset) == TOKENS
    sample = dataset[1]['data_samples']
    assert sample.token == TOKENS[1]
    assert sample.gt_instances_3d.bboxes_3d.tensor.shape == (0, 9)
    assert sample.gt_instances_3d.labels_3d.shape == (0, ) and sample.gt_instances_3d.labels_3d.dtype == torch.int64
    for camera in sample.gt_cameras:
        shapes = {key: tuple(value.shape) for key, value in camera.items()}
        assert shapes == dict(bboxes=(0, 4), labels=(0, ), centers_2d=(0, 2), depths=(0, ))
    without = build(infos, filter_empty_gt=True)
    assert tokens(without) == [token for token in TOKENS if token != TOKENS[1]]
    assert without.get_data_info(1)['prev_exists']


def test_test_mode_reads_no_annotation(infos, build):
    infos['data_list'][0]['instances'] = []
    for entry in infos['data_list'][1:]:
        del entry['instances'], entry['cam_instances']
    dataset = build(infos, pipeline=TEST, test_mode=True)
    for i in range(5):
        sample = dataset[i]['data_samples']
        assert 'bboxes_3d' not in sample.gt_instances_3d and 'gt_cameras' not in sample
    with pytest.raises(ValueError, match='sample scene-0061-1 has no annotations: LoadCameraAnnotations'):
        build(infos, pipeline=TRAIN, test_mode=True)[1]
    with pytest.raises(ValueError, match='instances is missing. A file without annotations needs test_mode=True'):
        build(infos)


# What is refused


def test_broken_images_are_named(infos, small_root, build):
    image = infos['data_list'][2]['images']['CAM_BACK']
    broken = small_root / 'samples' / 'CAM_BACK' / 'broken.jpg'
    whole = (small_root / 'samples' / 'CAM_BACK' / image['img_path']).read_bytes()
    image['img_path'] = 'broken.jpg'
    for settings, content in ((dict(pipeline=TRAIN), b'\xff\xd8\xff\xe0 no picture'),
                              (dict(pipeline=TRAIN), whole[:len(whole) // 2]),
                              (dict(pipeline=TEST, test_mode=True), whole[:-2]),
                              (dict(pipeline=TEST, test_mode=True), b'')):
        broken.write_bytes(content)
        dataset = build(infos, **settings)
        assert [dataset[i]['data_samples'].token for i in (0, 1, 3, 4)] == TOKENS[:2] + TOKENS[3:]
        with pytest.raises(OSError, match='sample scene-0061-2, camera CAM_BACK: .*broken.jpg is no whole image'):
            dataset[2]
    preview = b'\xff\xe1\x00\x08Exif\xff\xd9' + whole[2:-2]  # with an end of its own
    for content in (b'\xff\xd8' + preview, whole[:-2] + bytes(1000)):
        broken.write_bytes(content)
        with pytest.raises(OSError, match='broken.jpg is no whole image'):
            build(infos, pipeline=TRAIN)[2]
    broken.write_bytes(whole + bytes(5000))  # padded by the camera
    padded = build(infos, pipeline=TEST, test_mode=True)[2]['inputs']['img']
    broken.write_bytes(b'')
    image['img_path'] = 'scene-0061-2__CAM_BACK.jpg'
    assert (padded == build(infos, pipeline=TEST, test_mode=True)[2]['inputs']['img']).all()
    sizes = {key: image.pop(key) for key in ('height', 'width')}  # published files have none: the image's is read first
    for name in ('absent.jpg', 'broken.jpg'):
        image['img_path'] = name
        for known in ({}, sizes):
            image.update(known)
            with pytest.raises(OSError, match=f'sample scene-0061-2, camera CAM_BACK: .*{name}.*skip_tokens'):
                build(infos, pipeline=TRAIN)[2]
        del image['height'], image['width']
    image.update(sizes, img_path='scene-0061-2__CAM_BACK.jpg')
    image['width'] += 16
    with pytest.raises(OSError, match='CAM_BACK: .*has 320x180 pixels; the info file says 336x180'):
        build(infos, pipeline=TRAIN)[2]


def test_a_pipeline_that_drops_a_frame_is_an_error(infos, build):
    with pytest.raises(ValueError, match='returned None for sample scene-0061-1'):
        build(infos, pipeline=[lambda frame: None])[1]


@pytest.mark.parametrize('content, message', [
    (dict(infos=[], metadata=dict(version='v1.0-mini')), r"\['infos', 'metadata'\].*tools/create_data.py --root-path"),
    ([dict(token='a')], 'a list.*tools/create_data.py'),
    (dict(metainfo=dict(dataset='nuscenes'), data_list=[]), 'no metainfo.info_version.*tools/create_data.py'),
])
def test_old_files_are_refused(tmp_path, content, message):
    file = tmp_path / 'old.pkl'
    file.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=message):
        NuScenesCameraDataset(str(file))
    with pytest.raises(FileNotFoundError, match='create_data.py'):
        NuScenesCameraDataset(str(tmp_path / 'none.pkl'))


@pytest.mark.parametrize('key, value, message', [
    ('timestamp', None, 'sample scene-0061-1: timestamp is missing'),
    ('timestamp', float('nan'), 'sample scene-0061-1: timestamp is nan'),
    ('timestamp', '12:30', "sample scene-0061-1: timestamp is '12:30'"),
    ('token', None, r'data_list\[1\]: token is missing'),
    ('images', {}, 'sample scene-0061-1 has no cameras'),
])
def test_impossible_frames(infos, build, key, value, message):
    infos['data_list'][1][key] = value
    if value is None:
        del infos['data_list'][1][key]
    with pytest.raises(ValueError, match=f'infos.pkl: {message}'):
        build(infos)


@pytest.mark.parametrize('key, value, message', [
    ('bbox_3d', [1, 2, float('nan'), 4, 2, 1.5, 0], 'bbox_3d is .*nan'),
    ('bbox_3d', [1, 2, 0, 4, 0, 1.5, 0], 'bbox_3d is .*must exceed 0'),
    ('bbox_3d', [1, 2, 0, 4, 2, 1.5], 'bbox_3d is .*7 finite'),
    ('velocity', [float('inf'), 0], 'velocity is .*inf'),
    ('bbox_label_3d', 10, 'bbox_label_3d is 10, none of the labels of metainfo.categories'),
])
def test_impossible_objects(infos, build, key, value, message):
    """A range filter would drop NaN without a word."""
    infos['data_list'][1]['instances'][0][key] = value
    with pytest.raises(ValueError, match=f'infos.pkl: sample scene-0061-1: {message}'):
        build(infos)


@pytest.mark.parametrize('key, value', [('bbox', [0, 0, float('nan'), 9]), ('center_2d', [float('inf'), 0]),
                                        ('depth', float('nan'))])
def test_impossible_camera_labels(infos, build, key, value):
    camera, items = next((name, items) for name, items in infos['data_list'][1]['cam_instances'].items()
                         if any(item['bbox_label'] >= 0 for item in items))
    next(item for item in items if item['bbox_label'] >= 0)[key] = value
    with pytest.raises(ValueError, match=f'sample scene-0061-1: camera {camera}: cam_instances.{key} is not finite'):
        build(infos)


def test_double_frames_are_refused(infos, build):
    infos['data_list'].append(infos['data_list'][0])
    with pytest.raises(ValueError, match='sample scene-0061-0 occurs more than once'):
        build(infos)


# As configs use it


def test_built_from_a_config_and_collated(small_root):
    config = dict(type='georope.NuScenesCameraDataset', data_root=str(small_root), ann_file='nuscenes_infos_train.pkl',
                  pipeline=TRAIN, metainfo=dict(classes=list(CLASSES)))
    dataset = DATASETS.build(config)
    batch = pseudo_collate([dataset[0], dataset[4]])
    assert [sample.token for sample in batch['data_samples']] == [TOKENS[0], TOKENS[4]]
    assert set(batch['data_samples'][0].metainfo) == {
        'token', 'sample_idx', 'scene_token', 'frame_idx', 'prev_exists', 'timestamp', 'lidar2img', 'lidar2cam',
        'cam2img', 'lidar2global', 'ego_pose', 'img_path', 'filename', 'img_shape', 'ori_shape', 'cam_names',
        'box_type_3d', 'box_mode_3d'}
    assert batch['data_samples'][1].img_shape == [(96, 256)] * 6
    assert batch['data_samples'][1].ori_shape == [(180, 320)] * 6


def test_image_folders(infos, small_root, build):
    """Flat folders and absolute paths, as in files of others."""
    dataset = build(infos, data_prefix=dict(img='flat', CAM_BACK='elsewhere/back'))
    paths = dict(zip(SIX, dataset.get_data_info(0)['img_path']))
    assert paths['CAM_FRONT'] == os.path.join(small_root, 'flat', 'scene-0061-0__CAM_FRONT.jpg')
    assert paths['CAM_BACK'] == os.path.join(small_root, 'elsewhere/back', 'scene-0061-0__CAM_BACK.jpg')
    assert START > 1e9  # timestamps of this set are as large as real ones
