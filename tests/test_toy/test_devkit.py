"""The unmodified devkit and mmdet3d's converter accept the set, and the ground truth is perfect by their measure."""
import json
import runpy
from pathlib import Path

import mmdet3d
import numpy as np
import pytest
from nuscenes import NuScenes
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.detection.evaluate import DetectionEval
from nuscenes.eval.detection.utils import category_to_detection_name
from nuscenes.utils import splits
from nuscenes.utils.data_classes import LidarPointCloud
from nuscenes.utils.geometry_utils import points_in_box

from georope.toy.catalog import CLASSES
from georope.toy.options import MINI_TRAIN, MINI_VAL
from georope.toy.world import build_scene


@pytest.fixture(scope='module')
def nusc(toy):
    return NuScenes(version='v1.0-mini', dataroot=str(toy.root), verbose=False)


def test_scene_names_are_the_devkits():
    assert list(MINI_TRAIN) == splits.mini_train and list(MINI_VAL) == splits.mini_val


def truth_as_predictions(nusc, scene_names):
    results = {}
    for sample in nusc.sample:
        if nusc.get('scene', sample['scene_token'])['name'] not in scene_names:
            continue
        boxes = results[sample['token']] = []
        for token in sample['anns']:
            annotation = nusc.get('sample_annotation', token)
            if annotation['num_lidar_pts'] == 0:  # the devkit drops these from the truth
                continue
            attributes = [nusc.get('attribute', t)['name'] for t in annotation['attribute_tokens']]
            boxes.append(dict(sample_token=sample['token'], translation=annotation['translation'],
                              size=annotation['size'], rotation=annotation['rotation'],
                              velocity=np.nan_to_num(nusc.box_velocity(token)[:2]).tolist(),
                              detection_name=category_to_detection_name(annotation['category_name']),
                              detection_score=1.0, attribute_name=attributes[0] if attributes else ''))
    return dict(meta=dict(use_camera=True, use_lidar=False, use_radar=False, use_map=False, use_external=False),
                results=results)


@pytest.mark.parametrize('split, names', [('mini_val', MINI_VAL), ('mini_train', MINI_TRAIN)])
def test_ground_truth_scores_one(nusc, tmp_path, split, names):
    path = tmp_path / 'results.json'
    path.write_text(json.dumps(truth_as_predictions(nusc, names)))
    evaluation = DetectionEval(nusc, config_factory('detection_cvpr_2019'), str(path), split, str(tmp_path), False)
    metrics = evaluation.evaluate()[0].serialize()
    assert set(metrics['mean_dist_aps']) == set(CLASSES)
    assert min(metrics['mean_dist_aps'].values()) > 0.99  # so all ten classes are there
    assert metrics['mean_ap'] > 0.99 and metrics['nd_score'] > 0.99


def test_velocity_is_the_simulated_one(toy, nusc):
    """Straight motion exactly; along the curved lane within 0.02 m/s for central, 0.4 m/s for one-sided differences."""
    checked = 0
    for scene in nusc.scene:
        world = build_scene(toy.options, scene['name'])
        for instance in nusc.instance:
            first = nusc.get('sample_annotation', instance['first_annotation_token'])
            sample = nusc.get('sample', first['sample_token'])
            if sample['scene_token'] != scene['token'] or instance['nbr_annotations'] < 3:
                continue
            position = np.array(first['translation']) - world.origin
            time = world.time(sample['timestamp'])
            obj = min(world.objects, key=lambda o, t=time, p=position: np.linalg.norm(o.centre(t) - p))
            assert np.linalg.norm(obj.centre(time) - position) < 1e-6
            for token, tolerance in ((first['token'], 0.4), (first['next'], 0.02)):
                annotation = nusc.get('sample_annotation', token)
                now = world.time(nusc.get('sample', annotation['sample_token'])['timestamp'])
                error = np.linalg.norm(nusc.box_velocity(token)[:2] - obj.motion.velocity(now))
                assert error < (tolerance if obj.attribute == 'vehicle.moving' or obj.spec.kind == 'cycle' else 1e-6)
                checked += np.linalg.norm(obj.motion.velocity(now)) > 0.5
    assert checked > 10


def test_lidar_points_are_those_in_the_file(nusc):
    total = 0
    for sample in nusc.sample:
        path, boxes, _ = nusc.get_sample_data(sample['data']['LIDAR_TOP'])
        cloud = LidarPointCloud.from_file(path)
        for box in boxes:
            inside = int(points_in_box(box, cloud.points[:3]).sum())
            assert inside == nusc.get('sample_annotation', box.token)['num_lidar_pts']
            total += inside
    assert total > 1000


def test_lidar_sees_the_ground_flat(nusc):
    for sample in nusc.sample:
        data = nusc.get('sample_data', sample['data']['LIDAR_TOP'])
        cloud = LidarPointCloud.from_file(nusc.get_sample_data_path(data['token']))
        points = cloud.points[:3, np.linalg.norm(cloud.points[:2], axis=0) < 8]
        assert abs(np.quantile(points[2], 0.3) + 1.84) < 0.1  # z up, 1.84 m above ground


def test_ego_car_drives_on_the_map(nusc):
    mask = nusc.map[0]['mask']
    for sample in nusc.sample:
        pose = nusc.get('ego_pose', nusc.get('sample_data', sample['data']['LIDAR_TOP'])['ego_pose_token'])
        x, y, _ = pose['translation']
        assert 100 < x < 1000 and 100 < y < 1000
        assert mask.is_on_mask(x, y).all() and not mask.is_on_mask(x, 999).any()


def test_objects_stand_all_around_within_their_range(nusc):
    bearings, per_frame = [], []
    for sample in nusc.sample:
        _, boxes, _ = nusc.get_sample_data(sample['data']['LIDAR_TOP'])
        centres = np.array([b.center[:2] for b in boxes])
        bearings += np.degrees(np.arctan2(centres[:, 1], centres[:, 0])).tolist()
        per_frame.append((np.linalg.norm(centres, axis=1) < 50).sum())
    assert 15 <= min(per_frame) and max(per_frame) <= 60
    assert np.histogram(bearings, bins=8, range=(-180, 180))[0].min() > 5


def test_mmdet3d_converter_accepts_the_set(toy):
    tool = Path(mmdet3d.__file__).parent / '.mim/tools/dataset_converters/nuscenes_converter.py'
    if not tool.is_file():
        pytest.skip('mmdet3d was installed without its tools')
    convert = runpy.run_path(str(tool))
    nusc = NuScenes(version='v1.0-mini', dataroot=str(toy.root), verbose=False)
    scenes = {s['token'] for s in nusc.scene if s['name'] in MINI_TRAIN}
    train, val = convert['_fill_trainval_infos'](nusc, scenes, set(), max_sweeps=2)
    assert [len(train), len(val)] == [3, 3]
    assert [len(info['sweeps']) for info in train] == [0, 2, 2]
    assert set(np.concatenate([info['gt_names'] for info in train])) == set(CLASSES)
