"""Sharded training (mmengine's FSDP wrapper) against DDP on two gloo processes.

Two steps are all that CPUs can show: with torch 2.13 a whole state dict of a sharded model crashes there.
"""
import atexit

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.model.wrappers import MMDistributedDataParallel, MMFullyShardedDataParallel
from mmengine.optim import OptimWrapper
from shrunk_configs import CONFIGS, batch, build

from georope.engine.launch import leave_gloo

NAMES = ('petr/petr-worldrope_r50_8xb2-24e_nus-3d.py', 'streampetr/streampetr_r50_8xb2-seq-24e_nus-3d.py')
COUNTS = ((9, 6), (0, 3))  # objects of each rank's samples


def train(name: str, rank: int, sharded: bool) -> list[float]:
    """This rank's losses of three steps; the third repeats the first, after two updates."""
    # mmdet's ResNet recomputes with a nested backward pass, within which FSDP puts its parameters away.
    model = build(CONFIGS / name, dropout=0.0, img_backbone=dict(with_cp=False))
    batches = [batch(model, number, COUNTS[rank]) for number in (0, 1, 0)]
    if sharded:
        whole = sum(p.numel() for p in model.parameters())
        model = MMFullyShardedDataParallel(model, device_id=torch.device('cpu'))
        assert sum(p.numel() for p in model.parameters()) < 0.6 * whole
    else:
        model = MMDistributedDataParallel(module=model, broadcast_buffers=False)
    optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    losses = []
    for data in batches:
        torch.manual_seed(0)
        losses.append(model.train_step(data, optimizer)['loss'].item())
    return losses


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    atexit._clear()  # what the forked process has registered
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    torch.save({name: [train(name, rank, sharded) for sharded in (False, True)] for name in NAMES}, f'{folder}/{rank}')
    leave_gloo()


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('ranks'))
    mp.start_processes(work, (folder, ), nprocs=2, start_method='fork')
    return [torch.load(f'{folder}/{rank}', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('name', NAMES)
def test_sharded_equals_ddp(results, name):
    for of_rank in results:
        plain, sharded = of_rank[name]
        assert sharded == pytest.approx(plain, rel=1e-5) and abs(plain[2] / plain[0] - 1) > 1e-3
