"""Every shipped config: builds, and says what its users rely on."""
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

from georope.registry import MODELS
from georope.rope import NoEncoding, URoPE

ROOT = Path(__file__).resolve().parents[1]

CONFIGS = sorted(path.relative_to(ROOT / 'configs') for path in (ROOT / 'configs').rglob('*.py')
                 if '_base_' not in path.parts)


def test_configs_are_found():
    assert {'petr/petr_r50_8xb2-24e_nus-3d.py', 'toy/petr-urope_toy.py'} <= {str(path) for path in CONFIGS}


@pytest.mark.parametrize('path', CONFIGS, ids=str)
def test_config(path):
    cfg = Config.fromfile(ROOT / 'configs' / path)
    init_default_scope(cfg.default_scope)
    assert cfg.default_scope == 'mmdet3d' and cfg.custom_imports.imports == ['georope']
    assert set(cfg.auto_scale_lr) >= {'enable', 'base_batch_size'}
    checkpoint = cfg.default_hooks.checkpoint
    if 'max_epochs' in cfg.train_cfg:
        assert checkpoint.interval == 1 and checkpoint.get('by_epoch', True)
    else:
        assert 0 < checkpoint.interval < cfg.train_cfg.max_iters and not checkpoint.by_epoch
    assert cfg.load_from is None and cfg.resume is False
    assert cfg.train_dataloader.dataset.metainfo == cfg.val_dataloader.dataset.metainfo
    assert not cfg.get('find_unused_parameters', False)

    model = MODELS.build(cfg.model)
    head = model.pts_bbox_head
    assert head.num_classes == len(cfg.class_names) == len(cfg.val_dataloader.dataset.metainfo.classes)
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    if 'urope' in path.stem:
        assert isinstance(head.encoding, URoPE) and head.position_embedding == ('hybrid' in path.stem)
    else:
        assert type(head.encoding) is NoEncoding and head.position_embedding


@pytest.mark.parametrize('path', [p for p in CONFIGS if p.parts[0] != 'toy'], ids=str)
def test_name_says_gpus_batch_and_epochs(path):
    cfg = Config.fromfile(ROOT / 'configs' / path)
    gpus, batch, epochs = map(int, re.search(r'_(\d+)xb(\d+)-(\d+)e_nus-3d$', path.stem).groups())
    assert cfg.train_dataloader.batch_size == batch
    assert cfg.train_cfg.max_epochs == epochs == cfg.param_scheduler[-1].T_max
    assert cfg.auto_scale_lr.base_batch_size == gpus * batch


def test_encoding_is_the_only_difference_between_petr_and_its_urope_twin():
    for plain, urope in (('petr/petr_r50_8xb2-24e_nus-3d.py', 'petr/petr-urope_r50_8xb2-24e_nus-3d.py'),
                         ('toy/petr_toy.py', 'toy/petr-urope_toy.py')):
        a, b = (Config.fromfile(ROOT / 'configs' / name).to_dict() for name in (plain, urope))
        for cfg in (a, b):
            for key in ('encoding', 'position_embedding'):
                cfg['model']['pts_bbox_head'].pop(key)
            cfg.pop('encoding', None)
        assert a == b


def test_the_classic_recipe_is_that_of_petr():
    """Facts of megvii's and mmdet3d's petr_vovnet_gridmask_p4_800x320.py."""
    cfg = Config.fromfile(ROOT / 'configs/petr/petr-classic_vov-800x320_8xb1-24e_nus-3d.py')
    head = cfg.model.pts_bbox_head
    assert (head.type, head.num_query, head.denoising) == ('georope.PETRClassicHead', 900, None)
    assert list(head.code_weights) == [1] * 8 + [0.2] * 2 and not cfg.model.data_preprocessor.bgr_to_rgb
    for pipeline, index in ((cfg.train_pipeline, 1), (cfg.test_dataloader.dataset.pipeline, 0)):
        assert pipeline[index].final_dim == (320, 800) and pipeline[index].resize_lim == (0.47, 0.625)
    assert cfg.optim_wrapper.optimizer.lr == 2e-4
    assert cfg.optim_wrapper.paramwise_cfg.custom_keys.img_backbone.lr_mult == 0.1


def test_the_r50_recipe_is_that_of_the_streampetr_repository():
    """Facts of its petrv1_r50_flash_704_24e.py."""
    cfg = Config.fromfile(ROOT / 'configs/petr/petr_r50_8xb2-24e_nus-3d.py')
    head = cfg.model.pts_bbox_head
    assert (head.num_query, head.decoder.num_layers, head.denoising.groups, head.denoising.split) == (900, 6, 10, 0.75)
    assert cfg.image_aug.final_dim == (256, 704) and cfg.image_aug.resize_lim == (0.38, 0.55)
    assert cfg.optim_wrapper.optimizer.lr == 4e-4 and cfg.optim_wrapper.clip_grad.max_norm == 35
    assert cfg.optim_wrapper.paramwise_cfg.custom_keys.img_backbone.lr_mult == 0.25
    warmup, cosine = cfg.param_scheduler
    assert (warmup.end, cosine.eta_min_ratio) == (500, 1e-3) and warmup.start_factor == pytest.approx(1 / 3)


@pytest.mark.parametrize('name', ['petr_r50', 'petr-urope_r50'])
def test_r50_model_runs_at_full_size(name):
    """256x704, six cameras, 900 queries, one forward pass: the feature map has the stride the head counts with."""
    cfg = Config.fromfile(ROOT / f'configs/petr/{name}_8xb2-24e_nus-3d.py')
    init_default_scope('mmdet3d')
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        features = model.extract_feat({'imgs': torch.zeros(1, 1, 3, 256, 704)})
    assert features.shape == (1, 1, 256, 16, 44)
