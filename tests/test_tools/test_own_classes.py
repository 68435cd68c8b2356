"""A training with classes of own names, from the config to the scores: no forklift is called truck."""
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from launching import log, main, scalars
from mmengine.config import Config

from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.toy import make_toy_nuscenes

ROOT = Path(__file__).resolve().parents[2]
OWN = dict(car='tug', pedestrian='worker', truck='forklift')


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('own')
    root = make_toy_nuscenes(folder / 'toy', scenes=(1, 1), samples_per_scene=2, image_size=(96, 160), num_cameras=2,
                             progress=False)
    for file in create_infos(root, 'v1.0-mini'):
        infos = load_infos(file)
        labels = infos['metainfo']['categories']
        infos['metainfo']['categories'] = {OWN.get(name, name): label for name, label in labels.items()}
        save_infos(infos, file)
    with mock.patch.dict(os.environ, NUSCENES_ROOT=str(root)):
        cfg = Config.fromfile(ROOT / 'configs/toy/petr-urope_toy.py')
    names = list(OWN.values())
    data = dict(type='georope.CameraDataset', metainfo=dict(classes=names))
    loader = dict(batch_size=1, num_workers=0, persistent_workers=False, dataset=data)
    cfg.merge_from_dict(dict(
        model=dict(img_backbone=dict(depth=18, base_channels=8, init_cfg=None), img_neck=dict(in_channels=[32, 64]),
                   pts_bbox_head=dict(num_classes=3, num_query=12, denoising=dict(groups=2),
                                      decoder=dict(num_layers=1, feedforward_channels=32))),
        train_dataloader=loader, val_dataloader=loader,
        train_cfg=dict(max_epochs=1, val_interval=1), load_from=None, work_dir=str(folder / 'work'),
        default_hooks=dict(logger=dict(interval=1)), log_processor=dict(window_size=1)))
    cfg.val_evaluator = dict(type='georope.CameraMetric', ann_file=f'{root}/nuscenes_infos_val.pkl',
                             class_range=dict.fromkeys(names, 35.))
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.dump(folder / 'own.json')
    return folder / 'own.json'


def test_trains_and_scores_own_names(config):
    main('train', config)
    work_dir = config.parent / 'work'
    assert np.isfinite(scalars(work_dir, 'loss')).all() and len(scalars(work_dir, 'loss')) == 2
    for name in OWN.values():
        assert len(scalars(work_dir, f'camera/{name}_AP')) == 1 and f'\n{name} ' in log(work_dir)
    assert 'truck' not in log(work_dir).rpartition('detection, 2 frames')[2]


WRONG = {
    'heads': (['model.pts_bbox_head.num_classes=10'],
              r'train_dataloader.dataset.metainfo.classes has 3 names \(tug, .* model.pts_bbox_head.num_classes is 10: '
              r'set model.pts_bbox_head.num_classes=3'),
    'validation': (['val_dataloader.dataset.metainfo.classes=[tug,worker]'],
                   'val_dataloader.dataset.metainfo.classes has 2 names .*num_classes is 3'),
    'metric': (["val_evaluator.ann_file=/nowhere/infos.pkl"], 'Info file /nowhere/infos.pkl does not exist'),
    'ranges': (['val_evaluator.class_range.truck=30'], 'class_range has .*truck'),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_would_end_the_first_validation_ends_the_run_before_it_trains(config, tmp_path, name):
    options, message = WRONG[name]
    with pytest.raises(SystemExit, match=message):
        main('train', config, '--work-dir', tmp_path, '--cfg-options', *options)
    assert not scalars(tmp_path, 'loss')


def test_a_set_with_missing_and_broken_images_is_trained_on_and_scored_whole(config, tmp_path):
    """One image deleted, one cut off: training leaves out or hides, a test gives a result for every frame."""
    root = config.parent / 'toy'
    for split in ('train', 'val'):
        first, second = load_infos(root / f'nuscenes_infos_{split}.pkl')['data_list']
        (root / 'samples/CAM_FRONT' / first['images']['CAM_FRONT']['img_path']).unlink()
        name, image = list(second['images'].items())[1]
        cut = root / 'samples' / name / image['img_path']
        cut.write_bytes(cut.read_bytes()[:-300])
    evaluator = f'val_evaluator.jsonfile_prefix={tmp_path}/val'
    main('train', config, '--work-dir', tmp_path, '--cfg-options', evaluator, *(
        f'{name}_dataloader.dataset.incomplete=mask' for name in ('train', 'val')))
    assert len(scalars(tmp_path, 'loss')) == 2
    said = log(tmp_path)
    assert said.count('2 of 2 frames are not whole (CAM_FRONT: no image file 1') == 2 and 'broken image 1' in said
    main('test', config, tmp_path / 'epoch_1.pth', '--work-dir', tmp_path, '--show-dir', 'shown', '--cfg-options',
         f'test_evaluator.jsonfile_prefix={tmp_path}/test', 'test_dataloader.dataset.incomplete=mask')
    for folder in ('val', 'test'):
        results = json.loads((tmp_path / folder / 'results_nusc.json').read_text())['results']
        assert list(results) == [entry['token'] for entry in load_infos(root / 'nuscenes_infos_val.pkl')['data_list']]
        assert all(results.values())
    assert len(list(tmp_path.glob('*/shown/*.png'))) == 2
    with pytest.raises(SystemExit, match="CAM_FRONT: .*No such file.*incomplete='skip' or 'mask'"):
        main('train', config, '--work-dir', tmp_path / 'error')
    with pytest.raises(SystemExit, match="2 of 2 frames are not whole .*: incomplete='skip' leaves no frame"):
        main('train', config, '--work-dir', tmp_path / 'skip', '--cfg-options',
             'train_dataloader.dataset.incomplete=skip')
