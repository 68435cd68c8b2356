"""Training on streams through tools/train.py: interrupted and resumed, in both loops, and on two ranks."""
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


def _rank(rank: int, config: Path, work_dir: Path, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    main('train', config, '--work-dir', work_dir, '--launcher', 'pytorch', '--cfg-options', 'model.noise=0.',
         'train_dataloader.batch_size=1', 'train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False')
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(get_device() != 'cpu', reason='this machine has a GPU')
def test_two_ranks_equal_one(tmp_path):
    """Lanes, their starts and draws; each rank has a seed of its own, the sampler the first one's."""
    config = write(tmp_path, False)
    main('train', config, '--work-dir', tmp_path / 'one', '--cfg-options', 'model.noise=0.')
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank, (config, tmp_path / 'two', port), 2, start_method='fork')
    one, two = (weights(tmp_path / name / 'epoch_4.pth') for name in ('one', 'two'))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    assert (weights(tmp_path / 'one/epoch_2.pth') - one).abs().max() > 1e-2  # or equality shows nothing
