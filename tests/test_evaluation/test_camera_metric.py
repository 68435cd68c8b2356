"""Classes of any names, scored from an info file alone: the numbers are the devkit's."""
import copy
import json

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from nuscenes.eval.detection.config import config_factory
from perfect_detector import CLASSES, empty, run

from georope.datasets.converter import CLASSES as LABELS
from georope.datasets.converter import create_infos, frame_info
from georope.datasets.info_file import load_infos, save_infos
from georope.datasets.tables import NuScenesTables
from georope.registry import METRICS

RANGES = dict(config_factory('detection_cvpr_2019').class_range)
OWN = {name: f'own {name}' for name in CLASSES}


def score(samples, ann_file, classes=CLASSES, **options) -> dict:
    evaluator = Evaluator(METRICS.build(dict(type='georope.CameraMetric', ann_file=str(ann_file), **options)))
    evaluator.dataset_meta = dict(classes=classes)
    evaluator.process(data_samples=samples, data_batch=None)
    return evaluator.evaluate(len(samples))


@pytest.fixture(scope='module')
def ann_file(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp('camera_metric')
    create_infos(toy.nusc.dataroot, 'v1.0-mini', folder)
    return folder / 'nuscenes_infos_val.pkl'


@pytest.fixture(scope='module')
def own_file(ann_file):
    """The same file with names that nuScenes does not have."""
    infos = load_infos(ann_file)
    infos['metainfo']['categories'] = {OWN.get(name, name): label
                                       for name, label in infos['metainfo']['categories'].items()}
    return save_infos(infos, ann_file.with_name('own.pkl'))


def blurred(samples):
    """Detections that are off, of wrong classes, missing and twice: no number is 0 or 1."""
    rng, found = np.random.default_rng(0), []
    for sample in samples:
        sample = copy.deepcopy(sample)
        boxes = sample.pred_instances_3d
        twice = type(boxes).cat([boxes[torch.from_numpy(rng.random(len(boxes)) < .9)] for _ in range(2)])
        noise = torch.from_numpy(rng.normal(size=(len(twice), 9))).float()
        twice.bboxes_3d.tensor += noise * torch.tensor([.7, .7, .1, .1, .05, .05, .3, .5, .5])
        twice.bboxes_3d.tensor[:, 3:6].clamp_(min=.1)
        twice.scores_3d = torch.from_numpy(rng.random(len(twice))).float()
        twice.labels_3d[torch.from_numpy(rng.random(len(twice)) < .1)] = 0
        sample.pred_instances_3d = twice
        found.append(sample)
    return found


def compare(own, devkit, names=CLASSES, absent=()):
    for key in (f'{name}_AP' for name in CLASSES if name not in absent):
        prefix = key if names is CLASSES else OWN[key.removesuffix('_AP')] + '_AP'
        assert own[f'camera/{prefix}'] == pytest.approx(devkit[f'nuscenes/{key}'], abs=1e-9), key


def test_the_numbers_are_the_devkits_own(toy, ann_file):
    samples = blurred(toy.samples)
    own, devkit = score(samples, ann_file, class_range=RANGES), run(samples, **toy.options)
    assert 0.1 < own['camera/mAP'] < 0.9
    compare(own, devkit)
    for key in ('mAP', 'mATE', 'mASE'):  # the devkit leaves cones and barriers out of the others
        assert own[f'camera/{key}'] == pytest.approx(devkit[f'nuscenes/{key}'], abs=1e-9), key


def test_the_numbers_are_the_devkits_own_on_real_tables(mini_val, tmp_path, log):
    """Some of the ten classes are not there."""
    tables = NuScenesTables(mini_val.nusc.dataroot, 'v1.0-mini')
    scene = tables.scenes_in_order()[0]
    entries = [frame_info(tables, scene, i, sample, i) for i, sample in enumerate(tables.samples_of(scene)[:8])]
    metainfo = dict(categories={name: i for i, name in enumerate(LABELS)}, info_version='1.1', version='v1.0-mini')
    file = save_infos(dict(metainfo=metainfo, data_list=entries), tmp_path / 'infos.pkl')
    tokens = {entry['token'] for entry in entries}
    samples = blurred([sample for sample in mini_val.samples if sample.token in tokens])
    own = score(samples, file, class_range=RANGES)
    devkit = run(samples, size=len(samples), **mini_val.options)
    absent = [name for name in CLASSES if np.isnan(own[f'camera/{name}_AP'])]
    assert absent and f'no ground truth of {absent[0]}' in log() and len(samples) == 8
    compare(own, devkit, absent=absent)
    assert own['camera/mAP'] == pytest.approx(devkit['nuscenes/mAP'] * 10 / (10 - len(absent)), abs=1e-9)


def test_own_names_score_as_the_others(toy, ann_file, own_file, tmp_path):
    samples = blurred(toy.samples)
    theirs = score(samples, ann_file)
    own = score(samples, own_file, [OWN[name] for name in CLASSES], jsonfile_prefix=str(tmp_path))
    assert {OWN[name] + '_AP' for name in CLASSES} < {key.removeprefix('camera/') for key in own}
    assert own['camera/mAP'] == pytest.approx(theirs['camera/mAP'], abs=1e-12)
    results = json.loads((tmp_path / 'results_nusc.json').read_text())['results']
    assert list(results) == toy.tokens
    boxes = [box for found in results.values() for box in found]
    assert {box['detection_name'] for box in boxes} == set(OWN.values())
    assert {box['attribute_name'] for box in boxes} == {''}
    assert json.loads((tmp_path / 'metrics_summary.json').read_text())['mAP'] == own['camera/mAP']


def test_range_of_each_class(toy, own_file):
    """Boxes beyond it count neither as hits nor as false."""
    names = [OWN[name] for name in CLASSES]
    near = score(toy.samples, own_file, names, class_range=15.)
    assert near['camera/mAP'] == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match=r'class_range has .*own car.*, the dataset .*: give one number'):
        score(toy.samples, own_file, names, class_range={'own car': 50})


def test_objects_without_a_point(toy, own_file):
    """The toy world has some: they are no truth, unless one asks for them, and then they are missed."""
    names = [OWN[name] for name in CLASSES]
    assert score(toy.samples, own_file, names)['camera/mAP'] == pytest.approx(1, abs=1e-6)
    assert score(toy.samples, own_file, names, use_valid_flag=False)['camera/mAP'] < .999


def test_unfit_files_end_a_test_at_its_first_batch(toy, ann_file, tmp_path):
    with pytest.raises(ValueError, match=r"nuscenes_infos_val.pkl has no labels for the classes \['forklift'\]"):
        score(toy.samples, ann_file, ['forklift'])
    infos = load_infos(ann_file)
    for entry in infos['data_list']:
        del entry['instances']
    bare = save_infos(infos, tmp_path / 'bare.pkl')
    with pytest.raises(ValueError, match='bare.pkl: sample .*no annotations.*format_only=True'):
        score(toy.samples, bare)
    assert score(toy.samples, bare, format_only=True, jsonfile_prefix=str(tmp_path)) == {}


def test_no_boxes_score_zero(toy, own_file):
    scores = score([empty(token) for token in toy.tokens], own_file, [OWN[name] for name in CLASSES])
    assert scores['camera/mAP'] == 0 and scores['camera/mATE'] == 1
