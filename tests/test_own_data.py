"""docs/own_data.md and examples/my_project: own cameras, scenes, categories and splits, without LiDAR."""
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope

from georope.datasets import CameraDataset, NuScenesCameraDataset
from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.datasets.tables import NuScenesTables, pose_matrix
from georope.evaluation import NuScenesMetric, ground_truth_results, open_tables
from georope.rope import Rays, URoPE
from georope.visualization.info import ground_truth

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / 'examples/my_project'
CONFIG = PROJECT / 'configs/petr-ground_yard.py'
CLASSES = ('truck', 'pedestrian', 'traffic_cone')


@pytest.fixture(scope='module', autouse=True)
def _project():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROJECT))
        init_default_scope('mmdet3d')
        yield


@pytest.fixture(scope='module')
def yard(tmp_path_factory) -> Path:
    """One training scene of two frames, one validation scene of two."""
    from make_data import make_data
    root = make_data(tmp_path_factory.mktemp('own') / 'yard', train=1, val=1, samples=2, image_size=(112, 200))
    create_infos(root, 'v1.0-yard')
    return root


def copied(yard, folder, **tables) -> Path:
    """The tables of ``yard``, some replaced, without pictures."""
    (folder / 'v1.0-yard').mkdir(parents=True)
    for path in (yard / 'v1.0-yard').iterdir():
        content = tables.get(path.stem) or json.loads(path.read_text())
        (folder / 'v1.0-yard' / path.name).write_text(json.dumps(content))
    return folder


def dataset(root, split='val', **kwargs):
    return NuScenesCameraDataset(f'nuscenes_infos_{split}.pkl', str(root), metainfo=dict(classes=CLASSES), **kwargs)


def perfect(yard, split):
    """The dataset's annotations as predictions."""
    frames = dataset(yard, split)
    for i in range(len(frames)):
        info = frames.get_data_info(i)
        boxes = info['ann_info']['gt_bboxes_3d']
        boxes.tensor[:, 7:] = boxes.tensor[:, 7:].nan_to_num()
        yield dict(token=info['token'], lidar2global=info['lidar2global'], pred_instances_3d=dict(
            bboxes_3d=boxes, scores_3d=torch.ones(len(boxes)),
            labels_3d=torch.as_tensor(info['ann_info']['gt_labels_3d'])))


def test_info_files_of_own_splits(yard):
    assert not list(yard.rglob('*LIDAR*')) and not (yard / 'v1.0-yard/map.json').exists()
    for split, scene in (('train', 'yard-00'), ('val', 'yard-01')):
        infos = load_infos(yard / f'nuscenes_infos_{split}.pkl')
        assert [entry['scene_name'] for entry in infos['data_list']] == [scene] * 2
        assert infos['metainfo']['version'] == 'v1.0-yard'
        objects = [item for entry in infos['data_list'] for item in entry['instances']]
        assert all(item['bbox_3d_isvalid'] and item['num_lidar_pts'] == -1 for item in objects)
        assert len(ground_truth(infos['data_list'][0], infos['metainfo']['categories']).names) > 0


def test_boxes_are_in_the_ego_frame(yard):
    """That of the camera nearest in time, and own categories have their stand-ins' labels."""
    tables, frames = NuScenesTables(yard, 'v1.0-yard'), dataset(yard)
    assert frames.cameras == ['CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK']
    info = frames.get_data_info(0)
    np.testing.assert_array_equal(info['lidar2ego'], np.eye(4))
    sample = tables.get('sample', info['token'])
    back = tables.get('sample_data', sample['data']['CAM_BACK'])  # 10 ms before, the others 27 and more
    np.testing.assert_array_equal(info['lidar2global'], pose_matrix(tables.get('ego_pose', back['ego_pose_token'])))
    boxes, labels = info['ann_info']['gt_bboxes_3d'], info['ann_info']['gt_labels_3d']
    bottoms = boxes.bottom_center[boxes.bottom_center[:, :2].norm(dim=1) < 20]
    assert len(bottoms) and bottoms[:, 2].abs().max() < .5  # they stand on the ground of the ego frame
    raw = {name: json.loads((yard / f'v1.0-yard/{name}.json').read_text())
           for name in ('category', 'instance', 'sample_annotation')}
    category = {row['token']: row['name'] for row in raw['category']}
    instance = {row['token']: category[row['category_token']] for row in raw['instance']}
    here = [instance[row['instance_token']] for row in raw['sample_annotation'] if row['sample_token'] == info['token']]
    for name, label in (('forklift', 0), ('worker', 1), ('bollard', 2)):
        assert (labels == label).sum() == here.count(name) > 0


def test_own_poses_project_where_the_camera_saw(yard):
    """lidar2img against the chain of the raw tables, for a point of the global frame."""
    tables, info = NuScenesTables(yard, 'v1.0-yard'), dataset(yard).get_data_info(0)
    point = np.array([4., 1., 1., 1.])  # ego frame
    for camera, lidar2img in zip(info['cam_names'], info['lidar2img']):
        record = tables.get('sample_data', tables.get('sample', info['token'])['data'][camera])
        calibration = tables.get('calibrated_sensor', record['calibrated_sensor_token'])
        cam2global = pose_matrix(tables.get('ego_pose', record['ego_pose_token'])) @ pose_matrix(calibration)
        in_camera = np.linalg.inv(cam2global) @ info['lidar2global'] @ point
        seen = np.array(calibration['camera_intrinsic']) @ in_camera[:3]
        np.testing.assert_allclose((lidar2img @ point)[:3], seen, atol=1e-6)


def test_perfect_detections_score_one(yard, tmp_path):
    metric = NuScenesMetric(str(yard), str(yard / 'nuscenes_infos_val.pkl'), tracking=dict(),
                            jsonfile_prefix=str(tmp_path))
    metric.dataset_meta = dict(classes=CLASSES)
    metric.process(None, list(perfect(yard, 'val')))
    scores = metric.evaluate(2)
    assert scores['nuscenes/mAP_subset'] == pytest.approx(1) and scores['nuscenes/mAP'] == pytest.approx(.3)
    assert {key for key in scores if key.endswith('_AP')} == {f'nuscenes/{name}_AP' for name in CLASSES}
    results = json.loads((tmp_path / 'results_nusc.json').read_text())['results']
    assert {box['detection_name'] for boxes in results.values() for box in boxes} == set(CLASSES)
    assert scores['nuscenes/NDS'] == pytest.approx(.27, abs=.01)
    assert scores['nuscenes/AMOTA'] == pytest.approx(1)  # of trucks and pedestrians
    tokens = list(results)
    truth = dict(ground_truth_results(open_tables('v1.0-yard', str(yard), tokens), tokens))
    for token, boxes in truth.items():
        assert len(results[token]) == len(boxes) > 0


def test_trains_and_evaluates_from_another_folder(yard, tmp_path):
    """As a user would: the project's config and package, georope's tool; two iterations and a validation."""
    loader = ('num_workers=0', 'persistent_workers=False')
    command = [sys.executable, ROOT / 'tools/train.py', CONFIG, '--cfg-options', 'train_cfg.max_epochs=1',
               'train_cfg.val_interval=1', 'default_hooks.logger.interval=1', 'log_processor.window_size=1',
               'train_dataloader.batch_size=1',
               *(f'{name}_dataloader.{option}' for name in ('train', 'val') for option in loader)]
    env = dict(os.environ, PYTHONPATH=str(PROJECT), YARD_ROOT=str(yard), CUDA_VISIBLE_DEVICES='-1')
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert 'split val of v1.0-yard' in done.stdout
    work_dir = tmp_path / 'work_dirs/petr-ground_yard'
    logged, = work_dir.glob('*/vis_data/scalars.json')
    entries = [json.loads(line) for line in logged.read_text().splitlines()]
    losses = [entry['loss'] for entry in entries if 'loss' in entry]
    assert len(losses) == 2 and np.isfinite(losses).all()
    assert 0 <= entries[-1]['nuscenes/mAP_subset'] < 1
    weights = torch.load(work_dir / 'epoch_1.pth', weights_only=True)['state_dict']
    assert {len(value) for key, value in weights.items() if key.endswith('cls_branches.0.6.weight')} <= {3}


def test_own_encoding_ends_at_the_ground(yard):
    """A ray that meets the ground within the anchor has its token there, the others are URoPE's."""
    from my_project import GroundURoPE
    lidar2img = torch.tensor(dataset(yard).get_data_info(0)['lidar2img'])[None]
    rays = Rays.from_lidar2img(lidar2img, feature_size=(7, 13), stride=16)
    options = dict(num_heads=8, head_dim=32, anchors=[5, 45])
    own, plain = GroundURoPE(**options), URoPE(**options)
    depth = -rays.origins[..., 2] / rays.directions[..., 2]
    meets = (depth > 0) & (depth < 45)
    assert meets.any() and (depth < 0).any()
    ours, theirs = own.prepare(rays).cos[:, 4:], plain.prepare(rays).cos[:, 4:]  # the heads of 45 m
    torch.testing.assert_close(ours.transpose(1, 2)[~meets], theirs.transpose(1, 2)[~meets])
    ground = rays.origins + depth[..., None] * rays.directions
    exact = own.rotate_queries(ground).cos.expand(-1, 4, -1, -1)
    torch.testing.assert_close(ours.transpose(1, 2)[meets], exact.transpose(1, 2)[meets])


CLASS_FILES = {
    'category': (dict(crane='truck'), "category.json has no 'crane'"),
    'class': (dict(forklift='lorry'), "'forklift' cannot stand for 'lorry'"),
}


@pytest.mark.parametrize('name', CLASS_FILES)
def test_wrong_classes_are_named(yard, tmp_path, name):
    classes, message = CLASS_FILES[name]
    with pytest.raises(ValueError, match=message):
        NuScenesTables(copied(yard, tmp_path / 'set', classes=classes), 'v1.0-yard')


def test_own_names_become_classes_of_the_info_file(yard, tmp_path):
    """{category: category} in classes.json: no stand-in, a label of its own, two categories may share one."""
    root = copied(yard, tmp_path / 'set', classes=dict(forklift='forklift', worker='forklift', bollard='traffic_cone'))
    file = [file for file in create_infos(root, 'v1.0-yard') if file.stem.endswith('val')][0]
    infos, stand_ins = load_infos(file), load_infos(yard / file.name)
    assert infos['metainfo']['categories']['forklift'] == 10 and infos['metainfo']['categories']['traffic_cone'] == 8
    frames = CameraDataset(file.name, str(root), metainfo=dict(classes=('forklift', 'traffic_cone')))
    labels = [item['bbox_label_3d'] for entry in stand_ins['data_list'] for item in entry['instances']]
    cones = labels.count(stand_ins['metainfo']['categories']['traffic_cone'])
    assert frames.num_ins_per_cat == [len(labels) - cones, cones]
    everything = CameraDataset(file.name, str(root))
    assert everything.metainfo['classes'][-1] == 'forklift' and len(everything.metainfo['classes']) == 11
    assert len(everything.metainfo['palette']) == 11
    with pytest.raises(ValueError, match=r"\['forklift'\] are not classes of nuScenes.*georope.CameraDataset"):
        NuScenesCameraDataset(file.name, str(root), metainfo=dict(classes=('forklift', )))


def test_point_counts(yard, tmp_path):
    """All 0 is unknown, some 0 is the devkit's rule, half of them missing is an error."""
    records = json.loads((yard / 'v1.0-yard/sample_annotation.json').read_text())
    zero = [dict(record, num_lidar_pts=0, num_radar_pts=0) for record in records]
    some = [dict(zero[0], num_lidar_pts=4), *zero[1:]]
    counts = {}
    for name, rows in (('zero', zero), ('some', some)):
        tables = NuScenesTables(copied(yard, tmp_path / name, sample_annotation=rows), 'v1.0-yard')
        counts[name] = [record['num_lidar_pts'] for record in tables.sample_annotation]
    assert counts == dict(zero=[-1] * len(records), some=[4] + [0] * (len(records) - 1))
    half = copied(yard, tmp_path / 'half', sample_annotation=[some[0], *records[1:]])
    with pytest.raises(ValueError, match=f'annotation {records[1]["token"]} lacks'):
        NuScenesTables(half, 'v1.0-yard')


def test_info_file_without_a_valid_object_is_refused(yard, tmp_path):
    infos = copy.deepcopy(load_infos(yard / 'nuscenes_infos_val.pkl'))
    for entry in infos['data_list']:
        for item in entry['instances']:
            item['bbox_3d_isvalid'] = False
    path = save_infos(infos, tmp_path / 'nuscenes_infos_val.pkl')
    with pytest.raises(ValueError, match='none of its .* objects has a LiDAR or radar point. Set use_valid_flag=False'):
        dataset(path.parent)
    assert sum(dataset(path.parent, use_valid_flag=False).num_ins_per_cat) > 0
    assert len(dataset(path.parent, test_mode=True)) == 2
