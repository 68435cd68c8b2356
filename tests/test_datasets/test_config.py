"""The base config of the data, with its data root from the environment."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

from georope.engine.launch import read_config
from georope.registry import DATASETS, METRICS

CONFIG = Path(__file__).resolve().parents[2] / 'configs' / '_base_' / 'datasets' / 'nus-3d-camera.py'


@pytest.mark.parametrize('slash', ['', '/'])
def test_both_datasets_from_the_data_root_in_the_environment(small_root, monkeypatch, slash):
    monkeypatch.setenv('NUSCENES_ROOT', f'{small_root}{slash}')
    config = Config.fromfile(CONFIG)
    assert config.train_dataloader.batch_size == 2 and config.val_dataloader.dataset.test_mode
    train = DATASETS.build(config.train_dataloader.dataset)
    np.random.seed(0)
    data = train[1]
    assert data['inputs']['img'].shape == (6, 3, 256, 704) and data['inputs']['img'].dtype == torch.uint8
    assert data['data_samples'].gt_instances_3d.labels_3d.max() < len(config.class_names)
    config.val_dataloader.dataset.ann_file = 'nuscenes_infos_train.pkl'
    test = DATASETS.build(config.val_dataloader.dataset)
    first, again = test[1], test[1]
    assert torch.equal(first['inputs']['img'], again['inputs']['img'])
    assert (first['data_samples'].lidar2img == again['data_samples'].lidar2img).all()
    assert Path(config.val_evaluator.ann_file) == small_root / 'nuscenes_infos_val.pkl'


def test_a_root_below_the_home_folder(small_root, monkeypatch):
    monkeypatch.setenv('HOME', str(small_root.parent))
    monkeypatch.setenv('NUSCENES_ROOT', f'~/{small_root.name}')
    config = Config.fromfile(CONFIG)
    data = DATASETS.build(config.train_dataloader.dataset)
    assert len(data) == 5 and Path(data.get_data_info(0)['img_path'][0]).is_file()
    metric = METRICS.build(dict(config.val_evaluator, ann_file=f'~/{small_root.name}/nuscenes_infos_train.pkl'))
    assert len(metric.frames.tokens) == 5


@pytest.mark.parametrize('empty', [True, False])
def test_default_data_root(monkeypatch, empty):
    monkeypatch.delenv('NUSCENES_ROOT', raising=False)
    if empty:
        monkeypatch.setenv('NUSCENES_ROOT', '')
    assert read_config(str(CONFIG)).train_dataloader.dataset.data_root == 'data/nuscenes/'
