"""tools/train.py on the tiny model: flags, what it says before training, interruption and resume."""
import signal
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from launching import TOOLS, log, main, run, scalars
from mmengine.device import get_device
from tiny_model import CONFIG

from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.engine import build_model
from georope.errors import UnreadableInput
from georope.toy import make_toy_nuscenes

on_cpu = pytest.mark.skipif(get_device() != 'cpu', reason='this machine has a GPU')


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'tiny.py'
    path.write_text(CONFIG)
    return path


def weights(path: Path) -> torch.Tensor:
    state = torch.load(path, weights_only=True)['state_dict']
    return torch.cat([value.flatten() for value in state.values()])


def test_a_users_broken_file_ends_in_one_line(config, tmp_path, monkeypatch):
    """The info file as such, an entry of it, an image that a worker of the data loader reads."""
    root = make_toy_nuscenes(tmp_path / 'toy', scenes=(1, 0), samples_per_scene=2, image_size=(90, 160), num_cameras=1,
                             progress=False)
    path, = create_infos(root, 'v1.0-mini')
    infos = load_infos(path)
    config.write_text(f"""_base_ = '{config.with_name("base.py")}'
data = dict(_delete_=True, type='georope.NuScenesCameraDataset', data_root='{root}', ann_file='{path}', test_mode=True,
            pipeline=[dict(type='georope.LoadCameraImages')])
train_dataloader = dict(num_workers=1, dataset=data)
test_dataloader = dict(num_workers=1, dataset=data)
""")
    config.with_name('base.py').write_text(CONFIG)
    torch.save(dict(state_dict={}), tmp_path / 'weights.pth')

    def stops(message: str) -> None:
        for tool, *more in (('train', ), ('test', tmp_path / 'weights.pth')):
            with mock.patch('georope.engine.CheckWeightsHook.after_load_checkpoint'), \
                    pytest.raises(SystemExit) as stopped:
                main(tool, config, *more, '--work-dir', tmp_path / tool)
            assert message in stopped.value.code and '\n' not in stopped.value.code

    image = next((root / 'samples/CAM_FRONT').iterdir())
    broken = infos['data_list'][0]['images']['CAM_FRONT']['img_path']
    image.with_name(broken).write_bytes(b'\xff\xd8 no picture')
    stops(f'{infos["data_list"][0]["token"]}, camera CAM_FRONT: {root}/samples/CAM_FRONT/{broken} is no whole image')
    del infos['data_list'][1]['ego2global']
    save_infos(infos, path)
    stops(f'{path}: sample {infos["data_list"][1]["token"]}: ego2global is missing')
    path.write_bytes(b'version https://git-lfs.github.com/spec/v1')
    stops(f'{path} is a Git LFS pointer')
    monkeypatch.setenv('GEOROPE_TRACEBACK', '1')
    with pytest.raises(UnreadableInput):
        main('train', config, '--work-dir', tmp_path / 'train')


@pytest.mark.parametrize('kill', [False, True], ids=['ctrl-c', 'kill -9'])
def test_interrupted_and_resumed_equals_straight(config, tmp_path, kill):
    """Same order of samples, losses, learning rates and weights: all that depends on seed and epoch alone."""
    straight, broken = tmp_path / 'straight', tmp_path / 'broken'
    main('train', config, '--work-dir', straight)
    interrupt = ['--cfg-options', 'custom_hooks.0.iteration=15', f'custom_hooks.0.kill={kill}']
    if kill:
        done = run(sys.executable, TOOLS / 'train.py', config, '--work-dir', broken, *interrupt)
        assert done.returncode == -signal.SIGKILL
    else:
        with pytest.raises(KeyboardInterrupt):
            main('train', config, '--work-dir', broken, *interrupt)
    assert not (broken / 'epoch_3.pth').exists()
    main('train', config, '--work-dir', broken, '--resume')
    losses, again = scalars(straight, 'loss'), scalars(broken, 'loss')
    assert len(losses) == 24 and len(again) == 15 + 12  # the last whole epoch was the second
    np.testing.assert_allclose(again[-12:], losses[-12:], rtol=1e-6)
    np.testing.assert_allclose(scalars(broken, 'lr')[-12:], scalars(straight, 'lr')[-12:], rtol=1e-6)
    torch.testing.assert_close(weights(broken / 'epoch_4.pth'), weights(straight / 'epoch_4.pth'), rtol=0, atol=1e-7)


RECIPE = """
model = dict(layers=3, frozen=1)
custom_hooks = [dict(type='InterruptHook', iteration=None), dict(type='EMAHook', momentum=0.1)]
optim_wrapper = dict(accumulative_counts=2, constructor='georope.LayerDecayConstructor',
                     paramwise_cfg=dict(layer_decay=0.5))
"""


def test_ema_accumulation_layer_decay_and_frozen_layers_resume(config, tmp_path):
    """All four at once: each does what it says, and a run that was interrupted ends like one in one go."""
    recipe = tmp_path / 'recipe.py'
    recipe.write_text(f'_base_ = {str(config)!r}\n{RECIPE}')
    straight, broken = tmp_path / 'straight', tmp_path / 'broken'
    main('train', recipe, '--work-dir', straight)
    with pytest.raises(KeyboardInterrupt):
        main('train', recipe, '--work-dir', broken, '--cfg-options', 'custom_hooks.0.iteration=15')
    main('train', recipe, '--work-dir', broken, '--resume')
    one, two = (torch.load(path / 'epoch_4.pth', weights_only=True) for path in (straight, broken))
    for key in ('state_dict', 'ema_state_dict'):
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-7)
    np.testing.assert_allclose(scalars(broken, 'loss')[-12:], scalars(straight, 'loss')[-12:], rtol=1e-6)

    first = torch.load(straight / 'epoch_2.pth', weights_only=True)
    trained, averaged = one['ema_state_dict'], one['state_dict']  # mmengine saves the average as the model's weights
    assert not torch.equal(trained['module.linear.weight'], averaged['linear.weight'])
    moved = {key for key, value in averaged.items() if not torch.equal(value, first['state_dict'][key])}
    assert moved == {key for key in averaged if not key.startswith('img_backbone.0.')}  # the first layer is frozen
    assert {int(state['step']) for state in one['optimizer']['state'].values()} == {12}  # of 24 iterations
    assert sorted({group['initial_lr'] for group in one['optimizer']['param_groups']}) == [0.025, 0.05, 0.1]
    main('test', recipe, straight / 'epoch_4.pth', '--work-dir', tmp_path / 'test')


def test_epochs_are_shuffled_by_seed_and_epoch(config, tmp_path):
    """Two runs see the samples in one order, another seed in another, and each epoch has its own."""
    losses = []
    for number, seed in enumerate([3, 3, 4]):
        work_dir = tmp_path / str(number)
        main('train', config, '--work-dir', work_dir, '--cfg-options', 'optim_wrapper.optimizer.lr=0.',
             'train_cfg.max_epochs=2', f'randomness.seed={seed}', f'load_from={constant_weights(tmp_path)}')
        losses.append(np.array(scalars(work_dir, 'loss')).reshape(2, 6))
    np.testing.assert_array_equal(losses[0], losses[1])
    assert not np.allclose(losses[0], losses[2]) and not np.allclose(losses[0][0], losses[0][1])


def constant_weights(folder: Path) -> Path:
    torch.save({'linear.weight': torch.ones(1, 3) / 2, 'linear.bias': torch.ones(1)}, folder / 'constant.pth')
    return folder / 'constant.pth'


def test_resume_without_a_checkpoint_keeps_the_initial_weights(config, tmp_path):
    main('train', config, '--work-dir', tmp_path / 'w', '--resume', '--cfg-options', 'train_cfg.max_epochs=1',
         'optim_wrapper.optimizer.lr=0.', f'load_from={constant_weights(tmp_path)}')
    torch.testing.assert_close(weights(tmp_path / 'w/epoch_1.pth'), torch.tensor([.5, .5, .5, 1]))


def test_resume_from_a_work_dir_that_was_moved(config, tmp_path):
    main('train', config, '--work-dir', tmp_path / 'w', '--cfg-options', 'train_cfg.max_epochs=1',
         'param_scheduler.1.end=2')
    (tmp_path / 'w').rename(tmp_path / 'moved')
    main('train', config, '--work-dir', tmp_path / 'moved', '--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    assert 'resumed epoch: 1, iter: 6' in log(tmp_path / 'moved')


def test_says_what_is_trained(config, tmp_path):
    main('train', config, '--work-dir', tmp_path, '--auto-scale-lr', '--cfg-options',
         'optim_wrapper.accumulative_counts=2', 'train_dataloader.batch_size=5', 'train_cfg.max_epochs=1')
    assert ('training on 12 samples: batch 5 per process x 1 processes x 2 accumulated = 10; 3 iterations per epoch, '
            '3 in all, 0 done; lr 0.0625 (scaled by 0.625)') in log(tmp_path)


@on_cpu
def test_a_config_with_amp_trains_without_gpu(config, tmp_path, capsys):
    main('train', config, '--work-dir', tmp_path, '--cfg-options', 'optim_wrapper.type=AmpOptimWrapper',
         'optim_wrapper.loss_scale=dynamic', 'train_cfg.max_epochs=1')
    assert (tmp_path / 'epoch_1.pth').is_file()
    assert 'no GPU was found: training in float32' in capsys.readouterr().out


REFUSED = {
    'absent config': (['absent.py'], 'no such file: absent.py'),
    'amp': (['--amp'], '--amp needs a GPU'),
    'sync_bn': (['--sync_bn', 'torch'], '--sync_bn torch needs GPUs'),
    'slurm': (['--launcher', 'slurm'], '--launcher slurm needs GPUs'),
    'compile': (['--compile'], '--compile is for models with pts_bbox_head=dict(type="georope.PETRHead")'),
    'scale': (['--auto-scale-lr', '--cfg-options', 'auto_scale_lr=None'], '--auto-scale-lr needs auto_scale_lr'),
}


@on_cpu
@pytest.mark.parametrize('name', REFUSED)
def test_refuses_in_one_line(config, tmp_path, capsys, name):
    arguments, message = REFUSED[name]
    with pytest.raises(SystemExit) as stopped:
        main('train', *(['absent.py'] if 'absent' in name else [config, '--work-dir', tmp_path, *arguments]))
    assert message in f'{stopped.value}{capsys.readouterr().err}'


def test_test_refuses_an_absent_checkpoint(config, capsys):
    with pytest.raises(SystemExit):
        main('test', config, 'absent.pth')
    assert 'argument checkpoint: no such file: absent.pth' in capsys.readouterr().err
    with pytest.raises(SystemExit, match='--tta is for model.type="georope.PETR", not mmengine.TinyModel'):
        main('test', config, config, '--tta')


@pytest.mark.parametrize('option, meant', [
    ('encoding.temperature=none', 'use model.pts_bbox_head.encoding.temperature'),
    ('image_aug.final_dim=(1,2)', 'use test_dataloader.dataset.pipeline.0.final_dim, train_dataloader.dataset'),
    ('data_root=/x', 'train_dataloader.dataset.data_root'),
    ('modle.pts_bbox_head.num_query=3', 'use model.pts_bbox_head.num_query'),
])
def test_an_option_that_would_change_nothing_is_refused(option, meant):
    key, _, value = option.partition('=')
    with pytest.raises(SystemExit, match=f'{key}: nothing is built from it; .*{meant}'):
        build_model(TOOLS.parent / 'configs/toy/petr-worldrope_toy.py', {key: value})
