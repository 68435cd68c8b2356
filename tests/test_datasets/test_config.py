"""The base config of the data, with its data root from the environment."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

from georope.registry import DATASETS

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


def test_default_data_root(monkeypatch):
    monkeypatch.delenv('NUSCENES_ROOT', raising=False)
    assert Config.fromfile(CONFIG).train_dataloader.dataset.data_root == 'data/nuscenes/'
