"""Streams through the tools: training interrupted and resumed in both loops, training and testing on several ranks."""
import json
import os
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from launching import TOOLS, log, main, run, scalars
from mmengine.device import get_device
from tiny_stream import BY_ITERATION, CONFIG, TinyScenes

on_cpu = pytest.mark.skipif(get_device() != 'cpu', reason='this machine has a GPU')


def write(folder: Path, by_iteration: bool) -> Path:
    path = folder / 'stream.py'
    path.write_text(CONFIG + BY_ITERATION * by_iteration)
    return path


def weights(path: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in torch.load(path, weights_only=True)['state_dict'].values()])


@pytest.mark.parametrize('by_iteration, kill', [(False, True), (True, False)], ids=['epochs, kill -9', 'iterations'])
def test_interrupted_and_resumed_equals_straight(tmp_path, by_iteration, kill):
    """Same frames and losses, although model and data draw numbers and the model has a memory. USERS 44."""
    config, straight, broken = write(tmp_path, by_iteration), tmp_path / 'straight', tmp_path / 'broken'
    main('train', config, '--work-dir', straight)
    assert 'streams: 6 sequences in 2 lanes, 6 iterations per epoch' in log(straight)
    interrupt = ['--cfg-options', 'custom_hooks.0.iteration=15', f'custom_hooks.0.kill={kill}']
    if kill:
        done = run(sys.executable, TOOLS / 'train.py', config, '--work-dir', broken, *interrupt)
        assert done.returncode == -signal.SIGKILL, done.stdout
    else:
        with pytest.raises(KeyboardInterrupt):
            main('train', config, '--work-dir', broken, *interrupt)
    TinyScenes.loaded.clear()
    main('train', config, '--work-dir', broken, '--resume')
    if by_iteration:  # and no worker process, which would count elsewhere
        assert TinyScenes.loaded['frames'] == 12 * 2  # USERS 45: nothing is loaded to be dropped
    places, again = scalars(straight, 'places'), scalars(broken, 'places')
    assert len(places) == 24 and len(set(places)) > 12
    assert again == places[:15] + places[12:]  # the last whole epoch was the second
    np.testing.assert_allclose(scalars(broken, 'loss')[-12:], scalars(straight, 'loss')[-12:], rtol=1e-6)


def test_resumed_between_epochs_and_with_a_seed_that_was_drawn(tmp_path):
    """The seed comes from the checkpoint, lanes start with empty memory."""
    config = write(tmp_path, True)
    options = ['randomness.seed=None', 'default_hooks.checkpoint.interval=5']
    with pytest.raises(KeyboardInterrupt):
        main('train', config, '--work-dir', tmp_path / 'w', '--cfg-options', 'custom_hooks.0.iteration=14', *options)
    main('train', config, '--work-dir', tmp_path / 'w', '--resume', '--cfg-options', *options)
    places = scalars(tmp_path / 'w', 'places')
    assert len(places) == 14 + 14 and places[10:14] == places[14:18]


def _rank(rank: int, ranks: int, port: int, *arguments) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    main(*arguments)
    torch.distributed.destroy_process_group()


def on_ranks(ranks: int, *arguments) -> None:
    """As torchrun does it, but forked: new interpreters would take ten seconds each to import all."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank, (ranks, port, *arguments), ranks, start_method='fork')


@on_cpu
def test_two_ranks_equal_one(tmp_path):
    """Lanes, their starts and draws; each rank has a seed of its own, the sampler the first one's."""
    config, one, two = write(tmp_path, False), tmp_path / 'one', tmp_path / 'two'
    main('train', config, '--work-dir', one, '--cfg-options', 'model.noise=0.')
    on_ranks(2, 'train', config, '--work-dir', two, '--launcher', 'pytorch', '--cfg-options', 'model.noise=0.',
             'train_dataloader.batch_size=1', 'train_dataloader.num_workers=0',
             'train_dataloader.persistent_workers=False')
    torch.testing.assert_close(weights(two / 'epoch_4.pth'), weights(one / 'epoch_4.pth'), rtol=0, atol=1e-6)
    assert (weights(one / 'epoch_2.pth') - weights(one / 'epoch_4.pth')).abs().max() > 1e-2  # equality shows something


@on_cpu
def test_a_rank_without_scenes(tmp_path, monkeypatch):
    """Two scenes on three ranks, through mmengine's loop and hooks."""
    monkeypatch.chdir(tmp_path)  # mmengine gathers through a folder in the working directory
    config, checkpoint = write(tmp_path, False), tmp_path / 'constant.pth'
    torch.save({'linear.weight': torch.ones(1, 3), 'linear.bias': torch.ones(1)}, checkpoint)
    main('test', config, checkpoint, '--work-dir', tmp_path / 'one')
    on_ranks(3, 'test', config, checkpoint, '--work-dir', tmp_path / 'three', '--launcher', 'pytorch')
    one, three = (json.loads(next((tmp_path / name).glob('*/*.json')).read_text()) for name in ('one', 'three'))
    assert one['tiny/sum'] == pytest.approx(three['tiny/sum'], rel=1e-6)
    assert all('tiny/count: 7' in log(tmp_path / name) for name in ('one', 'three'))
