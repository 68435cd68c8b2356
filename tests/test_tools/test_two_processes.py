"""Two gloo processes through dist_train.sh and dist_test.sh against one process: a small PETR + URoPE on toy data."""
import json
import shutil
from pathlib import Path

import pytest
import torch
from launching import TOOLS, log, main, run
from tiny_model import CONFIG as TINY

from georope.datasets.converter import create_infos
from georope.evaluation.scenes import split_frames
from georope.evaluation.submission import check_submission
from georope.evaluation.tracker import TRACKING_NAMES
from georope.toy import make_toy_nuscenes

CONFIG = '''
_base_ = ['{configs}/petr/petr-urope_r50_8xb2-24e_nus-3d.py']
data_root = '{root}/'
image_aug = dict(final_dim=(64, 160), resize_lim=(1, 1), bot_pct_lim=(0, 0), rot_lim=(0, 0), rand_flip=False)
model = dict(
    data_preprocessor=dict(batch_augments=None),
    img_backbone=dict(depth=18, with_cp=False, init_cfg=None),
    img_neck=dict(in_channels=[256, 512]),
    pts_bbox_head=dict(num_query=30, decoder=dict(num_layers=2, dropout=0., with_cp=False),
                       denoising=dict(groups=2, noise_scale=0)))
train_pipeline = [
    dict(type='georope.LoadCameraAnnotations'),
    dict(type='georope.ImageAug', **image_aug),
    dict(type='georope.LoadCameraImages'),
    dict(type='georope.PackCameraInputs')]
test_pipeline = [
    dict(type='georope.ImageAug', training=False, **image_aug),
    dict(type='georope.LoadCameraImages'),
    dict(type='georope.PackCameraInputs')]
workers = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(dataset=dict(data_root=data_root, pipeline=train_pipeline, indices=6), **workers)
val_dataloader = dict(dataset=dict(data_root=data_root, pipeline=test_pipeline), **workers)
test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(data_root=data_root, ann_file=f'{{data_root}}/nuscenes_infos_val.pkl')
train_cfg = dict(max_epochs=2, val_interval=9)
# Adam would turn rounding errors of gradients near zero into whole steps.
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.002))
'''


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> Path:
    """A config on seven training and seven validation frames."""
    folder = tmp_path_factory.mktemp('toy')
    root = make_toy_nuscenes(folder / 'toy', scenes=(1, 1), samples_per_scene=7, image_size=(90, 160), num_cameras=2,
                             progress=False)
    create_infos(str(root), 'v1.0-mini')
    path = folder / 'small.py'
    path.write_text(CONFIG.format(configs=TOOLS.parent / 'configs', root=root))
    return path


@pytest.fixture(scope='module')
def two_ranks(config, tmp_path_factory) -> Path:
    """The work dir of two processes with batch 1."""
    work_dir = tmp_path_factory.mktemp('two')
    done = run(TOOLS / 'dist_train.sh', config, 2, '--work-dir', work_dir, '--cfg-options',
               'train_dataloader.batch_size=1')
    assert done.returncode == 0, done.stdout
    return work_dir


def test_training(config, two_ranks, tmp_path):
    assert '6 samples: batch 1 per process x 2 processes x 1 accumulated = 2; 3 iterations per epoch' in log(two_ranks)
    main('train', config, '--work-dir', tmp_path, '--cfg-options', 'train_dataloader.batch_size=2')
    first, *states = (torch.load(path, weights_only=True)['state_dict']
                      for path in (tmp_path / 'epoch_1.pth', tmp_path / 'epoch_2.pth', two_ranks / 'epoch_2.pth'))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=1e-6)
    assert any((states[0][key] - first[key]).abs().max() > 1e-3 for key in first)  # or equality shows nothing


def test_testing(config, two_ranks, tmp_path):
    """Seven frames on two processes: one is padding."""
    one, two = tmp_path / 'one', tmp_path / 'two'
    checkpoint = two_ranks / 'epoch_2.pth'
    main('test', config, checkpoint, '--work-dir', one, '--cfg-options', f'test_evaluator.jsonfile_prefix={one}')
    done = run(TOOLS / 'dist_test.sh', config, checkpoint, 2, '--work-dir', two, '--cfg-options',
               f'test_evaluator.jsonfile_prefix={two}')
    assert done.returncode == 0, done.stdout
    results = [json.loads((folder / 'results_nusc.json').read_text()) for folder in (one, two)]
    assert len(results[0]['results']) == 7 and results[0] == results[1]
    assert 'nuScenes tracking, 7 frames, split mini_val' in log(one)
    assert (two / 'tracking_metrics_summary.json').exists()
    assert (one / 'tracking_nusc.json').read_bytes() == (two / 'tracking_nusc.json').read_bytes()


def test_a_test_split_without_annotations_becomes_two_submissions(config, two_ranks, tmp_path):
    """The command of evaluation/README.md. With no score cut every box of a tracked class becomes part of a track."""
    tables = tmp_path / 'v1.0-test'
    shutil.copytree(config.parent / 'toy/v1.0-mini', tables)
    for name in ('category', 'attribute', 'visibility', 'instance', 'sample_annotation'):
        (tables / f'{name}.json').unlink()
    scenes = json.loads((tables / 'scene.json').read_text())
    (tables / 'scene.json').write_text(json.dumps(
        [dict(scene, name=name) for scene, name in zip(scenes, ('scene-0077', 'scene-0078'))]))
    (tmp_path / 'samples').symlink_to(config.parent / 'toy/samples')
    create_infos(str(tmp_path), 'v1.0-test')
    main('test', config, two_ranks / 'epoch_2.pth', '--work-dir', tmp_path / 'work', '--cfg-options',
         f'test_dataloader.dataset.data_root={tmp_path}/', f'test_evaluator.data_root={tmp_path}',
         'test_dataloader.dataset.ann_file=nuscenes_infos_test.pkl', 'test_evaluator.tracking.score_threshold=0',
         f'test_evaluator.ann_file={tmp_path}/nuscenes_infos_test.pkl', f'test_evaluator.jsonfile_prefix={tmp_path}')
    assert 'v1.0-test has no public annotations' in log(tmp_path / 'work')
    frames, counts = split_frames('test', str(tmp_path)), []
    for task, name in (('detection', 'results'), ('tracking', 'tracking')):
        assert check_submission(str(tmp_path / f'{name}_nusc.json'), task, frames) == []
        boxes = json.loads((tmp_path / f'{name}_nusc.json').read_text())['results'].values()
        counts.append([sum(box[f'{task}_name'] in TRACKING_NAMES for box in frame) for frame in boxes])
    assert sum(map(len, frames.values())) == len(counts[0]) == 14 and counts[0] == counts[1] and min(counts[0]) > 0


def test_show_dir_writes_a_picture_of_each_frame(config, two_ranks, tmp_path):
    main('test', config, two_ranks / 'epoch_2.pth', '--work-dir', tmp_path, '--show-dir', 'pictures')
    assert len(list(tmp_path.glob('*/pictures/*.png'))) == 7


@pytest.mark.parametrize('limit', [8, 60])
def test_the_config_says_how_long_processes_wait_for_each_other(tmp_path, limit):
    """The metric of the main process takes 20 s."""
    (tmp_path / 'tiny.py').write_text(TINY)
    torch.save({'linear.weight': torch.ones(1, 3), 'linear.bias': torch.ones(1)}, tmp_path / 'tiny.pth')
    done = run(TOOLS / 'dist_test.sh', tmp_path / 'tiny.py', tmp_path / 'tiny.pth', 2, '--work-dir', tmp_path / 'w',
               '--cfg-options', f'env_cfg.dist_cfg.timeout={limit}', 'test_evaluator.type=mmengine.SlowMetric')
    assert ('imed out' in done.stdout) == (done.returncode != 0) == (limit < 20), done.stdout
    assert ('tiny/count: 12' in log(tmp_path / 'w')) == (limit > 20)
