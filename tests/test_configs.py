"""Every shipped config: builds, and says what its users rely on."""
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from mmdet3d.structures import Det3DDataSample
from mmengine.config import Config
from mmengine.registry import init_default_scope

from georope.registry import MODELS
from georope.rope import GTA, LearnedDepth, NoEncoding, Pluecker, PRoPE, RayRoPE, URoPE, WorldRoPE

ROOT = Path(__file__).resolve().parents[1]

CONFIGS = sorted(path.relative_to(ROOT / 'configs') for path in (ROOT / 'configs').rglob('*.py')
                 if '_base_' not in path.parts and path.stem != 'backbone_toy')  # that one finds no boxes
ENCODINGS = {'urope': URoPE, 'worldrope': WorldRoPE, 'rayrope': RayRoPE, 'learned-depth': LearnedDepth, 'gta': GTA,
             'prope': PRoPE, 'pluecker': Pluecker}


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
    assert cfg.load_from in (None, 'work_dirs/backbone_toy/epoch_3.pth') and cfg.resume is False
    assert cfg.train_dataloader.dataset.metainfo == cfg.val_dataloader.dataset.metainfo
    assert not cfg.get('find_unused_parameters', False)
    init = cfg.model.img_backbone.get('init_cfg')
    # torchvision:// wants a package that is not in our pins; EVA-02's weights have to be converted.
    assert not init or init.checkpoint.startswith('ckpts/eva02' if 'eva02' in path.stem else 'https://')

    model = MODELS.build(cfg.model)
    # mmcv is compiled without its CUDA ops: no part of a model may come from there.
    assert not any(kind.__module__.startswith('mmcv.ops') for part in model.modules() for kind in type(part).__mro__)
    head = model.pts_bbox_head
    assert head.num_classes == len(cfg.class_names) == len(cfg.val_dataloader.dataset.metainfo.classes)
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    name = next((name for name in ENCODINGS if f'petr-{name}' in path.stem), None)
    assert type(head.encoding) is ENCODINGS.get(name, NoEncoding)
    assert head.position_embedding == (name is None or 'hybrid' in path.stem)
    for key in ('encoding', 'self_encoding'):  # what the file names is what is built
        assert cfg.get(key, cfg.model.pts_bbox_head.get(key)) == cfg.model.pts_bbox_head.get(key)


@pytest.mark.parametrize('path', [p for p in CONFIGS if p.parts[0] != 'toy'], ids=str)
def test_name_says_gpus_batch_and_epochs(path):
    cfg = Config.fromfile(ROOT / 'configs' / path)
    gpus, batch, epochs = map(int, re.search(r'_(\d+)xb(\d+)-(?:\w+-)*(\d+)e_nus-3d$', path.stem).groups())
    assert cfg.train_dataloader.batch_size == batch
    assert cfg.train_cfg.max_epochs == epochs == cfg.param_scheduler[-1].T_max
    assert cfg.auto_scale_lr.base_batch_size == gpus * batch


@pytest.mark.parametrize('path', [p for p in CONFIGS if p.stem.startswith(tuple(f'petr-{name}' for name in ENCODINGS))
                                  and 'overfit' not in p.stem], ids=str)
def test_encoding_is_the_only_difference_from_petr(path):
    """On the toy world how training starts as well."""
    plain = 'toy/petr_toy.py' if path.parts[0] == 'toy' else 'petr/petr_r50_8xb2-24e_nus-3d.py'
    plain = plain.replace('r50', 'vov-800x320') if 'vov' in path.stem else plain
    a, b = (Config.fromfile(ROOT / 'configs' / name).to_dict() for name in (plain, path))
    for cfg in (a, b):
        head = cfg['model']['pts_bbox_head']
        for key in ('encoding', 'self_encoding', 'position_embedding', 'moving_queries', 'uncertain_queries',
                    'token_encoder'):
            head.pop(key, None)
            cfg.pop(key, None)
        if path.parts[0] == 'toy':
            head.pop('init_cfg')
            head['decoder'].pop('positional_bias', None)
        if 'anchors16' in path.stem:
            head['decoder'].pop('num_heads')
        if 'twoscales' in path.stem:
            head.pop('stride')
            cfg['model'].pop('position_level', None)
    assert a == b


def test_the_metafile_lists_all_of_petr():
    models = yaml.safe_load((ROOT / 'configs/petr/metafile.yml').read_text())['Models']
    assert {model['Config'] for model in models} == {f'configs/{path}' for path in CONFIGS if path.parts[0] == 'petr'}


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
def test_r50_model_runs_at_full_size(name, golden_folder):
    """256 x 704, six cameras of nuScenes, 900 queries, six layers: a forward pass of the whole model."""
    cfg = Config.fromfile(ROOT / f'configs/petr/{name}_8xb2-24e_nus-3d.py')
    init_default_scope('mmdet3d')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    model.pts_bbox_head.init_weights()
    arrays = np.load(golden_folder / 'petr_dn.npz')
    twice = np.diag([2, 2, 1, 1])  # from images of 128 x 352
    meta = dict(lidar2img=twice @ arrays['lidar2img'][0], cam2img=twice @ arrays['intrinsics'][0],
                img_shape=(256, 704), token='a')
    with torch.no_grad():
        results = model(dict(imgs=torch.rand(1, 6, 3, 256, 704)), [Det3DDataSample(metainfo=meta)], mode='tensor')
    assert results['logits'].shape == (6, 1, 900, 10) and results['codes'].shape == (6, 1, 900, 10)
    assert results['logits'].isfinite().all() and results['codes'].isfinite().all()
    lower, upper = torch.tensor(cfg.point_cloud_range).chunk(2)
    centres = results['codes'][..., :3]
    assert ((centres >= lower) & (centres <= upper)).all() and (centres.std(2) > 1).all()  # spread over the range
