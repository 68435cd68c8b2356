"""What distinguishes the StreamPETR configs; tests/test_configs.py builds them with all others."""
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
SIZES = {'vov-800x320': (320, 800), 'vov-1600x640': (640, 1600)}


def load(name):
    return Config.fromfile(CONFIGS / name)


def test_the_r50_recipe_is_that_of_the_streampetr_repository():
    """Facts of its stream_petr_r50_flash_704_bs2_seq_24e.py."""
    cfg = load('streampetr/streampetr_r50_8xb2-seq-24e_nus-3d.py')
    head, roi = cfg.model.pts_bbox_head, cfg.model.img_roi_head
    assert (head.num_query, head.memory_len, head.topk_proposals, head.num_propagated) == (644, 1024, 256, 256)
    assert head.code_weights == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1] and head.denoising.groups == 10
    assert [cost.weight for cost in roi.assigner.match_costs] == [2, 5, 2, 10]
    assert [roi[f'loss_{name}'].loss_weight for name in ('cls2d', 'centerness', 'bbox2d', 'iou2d', 'centers2d')] == [
        2, 1, 5, 2, 10]
    assert cfg.train_dataloader.batch_sampler == dict(type='georope.StreamBatchSampler', seq_split_num=2)
    assert cfg.test_dataloader.batch_sampler.type == 'georope.SceneBatchSampler'


@pytest.mark.parametrize('name, epochs, queries, lr_mult', [
    ('r50_8xb2-seq-90e', 90, 644, 0.25), ('r50_8xb2-seq-428q-60e', 60, 300, 0.1),
    ('vov-800x320_8xb2-seq-24e', 24, 644, 0.1), ('vov-1600x640_8xb1-seq-24e', 24, 644, 0.1),
    ('r50_8xb1-8key-2grad-24e', 24, 644, 0.25)])
def test_variants(name, epochs, queries, lr_mult):
    cfg = load(f'streampetr/streampetr_{name}_nus-3d.py')
    head = cfg.model.pts_bbox_head
    assert cfg.train_cfg.max_epochs == cfg.train_cfg.val_interval == epochs
    assert cfg.param_scheduler[1].end == cfg.param_scheduler[1].T_max == epochs
    assert (head.num_query, head.memory_len) == (queries, 4 * head.topk_proposals)
    assert cfg.optim_wrapper.paramwise_cfg.custom_keys.img_backbone.lr_mult == lr_mult
    windows = '8key' in name
    assert cfg.optim_wrapper.optimizer.lr == (2e-4 if '8xb1' in name else 4e-4)
    assert (cfg.train_dataloader.dataset.type == 'georope.NuScenesWindowDataset') == windows
    if windows:
        grads = [cfg.model[f'num_frame_{part}'] for part in ('losses', 'head_grads', 'backbone_grads')]
        assert grads == [cfg.model.data_preprocessor.batch_augments[0].last_frames] * 3 == [2] * 3
    for pipeline, index in ((cfg.train_dataloader.dataset.pipeline, 1), (cfg.test_dataloader.dataset.pipeline, 0)):
        assert pipeline[index].final_dim == SIZES.get(name.partition('_')[0], (256, 704))


TWINS = [('streampetr', f'_{name}-seq-24e_nus-3d') for name in ('r50_8xb2', 'vov-800x320_8xb2', 'vov-1600x640_8xb1')]


@pytest.mark.parametrize('folder, suffix, encoding', [
    *((*twin, encoding) for twin in (*TWINS, ('toy', '_toy')) for encoding in ('urope', 'worldrope')),
    *((*twin, encoding) for twin in (TWINS[0], ('toy', '_toy')) for encoding in (
        'urope-hybrid', 'urope-mixed', 'worldrope-mixed', 'rayrope', 'learned-depth', 'gta', 'prope', 'pluecker')),
    ('streampetr', '_eva02-l-800x320_8xb2-seq-24e_nus-3d', 'urope')])
def test_encoding_is_the_only_difference_between_twins(folder, suffix, encoding):
    """On the toy world how training starts as well."""
    a, b = (load(f'{folder}/{name}{suffix}.py').to_dict() for name in ('streampetr', f'streampetr-{encoding}'))
    assert b['model']['pts_bbox_head']['encoding'] == b.pop('encoding')
    for cfg in (a, b):
        head = cfg['model']['pts_bbox_head']
        for key in ('encoding', 'position_embedding'):
            head.pop(key)
        if folder == 'toy':
            head.pop('init_cfg')
            head['decoder'].pop('positional_bias', None)
    assert a == b


def test_streampetr_has_every_encoding_that_petr_has():
    for found, twin in (('petr/petr-*_r50_8xb2-24e_nus-3d.py', 'streampetr/streampetr-{}_r50_8xb2-seq-24e_nus-3d.py'),
                        ('toy/petr-*_toy.py', 'toy/streampetr-{}_toy.py')):
        for path in CONFIGS.glob(found):
            encoding = path.stem.split('_')[0].removeprefix('petr-')
            own, other = (load(name).model.pts_bbox_head for name in (path, twin.format(encoding)))
            for key in ('encoding', 'position_embedding', 'token_encoder', 'stride'):
                assert own.get(key) == other.get(key)


def test_the_toy_differs_from_petrs_by_what_streampetr_is():
    a, b = (load(f'toy/{name}_toy.py').to_dict() for name in ('petr', 'streampetr'))
    head = b['model']['pts_bbox_head']
    assert head['num_query'] + head['num_propagated'] == a['model']['pts_bbox_head']['num_query']
    for cfg in (a, b):
        cfg['train_dataloader'].pop('batch_size')
        cfg.pop('auto_scale_lr')
        for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            cfg[loader].pop('batch_sampler', None)
        for key in ('type', 'img_roi_head', 'pts_bbox_head'):
            cfg['model'].pop(key, None)
    assert a == {key: value for key, value in b.items() if key != 'img_roi_head'}


def test_the_metafile_lists_all():
    index = yaml.safe_load((CONFIGS.parent / 'model-index.yml').read_text())
    assert 'configs/streampetr/metafile.yml' in index['Import']
    models = yaml.safe_load((CONFIGS / 'streampetr/metafile.yml').read_text())['Models']
    assert {model['Config'] for model in models} == {
        str(path.relative_to(CONFIGS.parent)) for path in (CONFIGS / 'streampetr').glob('*.py')}
    readme = (CONFIGS / 'streampetr/README.md').read_text()
    assert all(f'`{model["Name"].removesuffix("_nus-3d")}`' in readme for model in models)
