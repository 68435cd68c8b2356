"""The whole way on sets that this folder did not write: real frames, and the toy world with all its edge cases."""
import warnings

import numpy as np
import pytest
from small_nuscenes import CLASSES, TEST, TRAIN

from georope.datasets import NuScenesCameraDataset
from georope.datasets.converter import create_infos
from georope.toy import EDGE_CASES, make_toy_nuscenes


def dataset(root, file, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # no warning about calibration, pose or order
        return NuScenesCameraDataset(str(file), str(root), metainfo=dict(classes=CLASSES), **kwargs)


def test_real_scene(shared, tmp_path):
    root = shared / 'data' / 'nuscenes_scene0103'
    (file, ) = create_infos(root, 'v1.0-mini', tmp_path)
    frames = dataset(root, file)
    assert len(frames) == 4
    infos = [frames.get_data_info(i) for i in range(4)]
    assert [info['prev_exists'] for info in infos] == [False, True, True, True]
    assert np.allclose(np.diff([info['timestamp'] for info in infos]), .5, atol=.02)
    assert [info['scene_name'] for info in infos] == ['scene-0103'] * 4
    for settings in (dict(pipeline=TRAIN), dict(pipeline=TEST, test_mode=True)):
        data = dataset(root, file, **settings)[2]
        assert data['inputs']['img'].shape == (6, 3, 96, 256) and data['inputs']['img'].float().std() > 20


def test_real_tables_without_files(shared, tmp_path):
    """No image, LiDAR or map file is there."""
    root = shared / 'data' / 'nuscenes_mini_val_tables'
    (file, ) = create_infos(root, 'v1.0-mini', tmp_path)
    frames = dataset(root, file, use_valid_flag=False)
    assert len(frames) == 81
    scenes = [frames.get_data_info(i)['scene_name'] for i in range(81)]
    assert scenes == ['scene-0103'] * scenes.count('scene-0103') + ['scene-0916'] * scenes.count('scene-0916')
    assert sum(frames.num_ins_per_cat) > 4000


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    out = tmp_path_factory.mktemp('toy') / 'set'
    return make_toy_nuscenes(out, scenes=(2, 1), samples_per_scene=3, image_size=(90, 160), num_cameras=3,
                             edge_cases=list(EDGE_CASES), progress=False)


def test_toy_world_with_edge_cases(toy):
    train_file, val_file = create_infos(toy, 'v1.0-mini')
    train, val = dataset(toy, train_file, pipeline=TRAIN), dataset(toy, val_file, pipeline=TEST, test_mode=True)
    assert (len(train), len(val)) == (4, 3)
    samples = [train[i]['data_samples'] for i in range(4)]
    assert [sample.frame_idx for sample in samples] == [0, 1, 2, 0]
    assert len(samples[1].gt_instances_3d.labels_3d) == 0 < len(samples[0].gt_instances_3d.labels_3d)
    assert samples[2].timestamp > 2.4  # the gap
    assert np.abs(samples[0].lidar2global[:2, 3]).min() > 4e5  # far from the map's origin
    everything = dataset(toy, train_file, use_valid_flag=False)
    assert sum(everything.num_ins_per_cat) > sum(train.num_ins_per_cat)  # one car has no point
    assert val[0]['inputs']['img'].shape == (3, 3, 96, 256)
