"""Two gloo processes against one process with the same global batch."""
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model_factory import UROPE, features, sample, tiny_head
from torch import nn

from georope.engine.launch import leave_gloo

COUNTS = (1, 0)  # less than one object per rank
WORLDROPE = dict(type='georope.WorldRoPE', per_layer=False, temperature='token', depth_loss_weight=0.5,
                 bands=dict(type='mixed', learnable=True))
HEADS = (dict(encoding=UROPE), dict(encoding=UROPE, position_embedding=False),
         dict(encoding=WORLDROPE, position_embedding=False, self_encoding=dict(type='georope.RoPE3D')))
CASES = list(itertools.product((None, dict(groups=3, noise_scale=0)), (False, True), HEADS))


class Losses(nn.Module):

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, tensor, data_samples):
        return sum(self.head.loss(tensor, data_samples).values())


def gradients(case, ranks, wrap=lambda module: module):
    denoising, checkpointing, options = CASES[case]
    head = tiny_head(denoising=denoising, **options)
    head.transformer['decoder'].with_cp = checkpointing
    model = wrap(Losses(head.train()))
    batch = [sample(f'rank{rank}', COUNTS[rank], seed=rank) for rank in ranks]
    for _ in range(2):  # DDP complains about unused parameters in the second iteration
        model.zero_grad()
        model(features(2)[list(ranks)], batch).backward()
    return {name.removeprefix('module.'): p.grad.clone() for name, p in model.named_parameters()}


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    results = [gradients(case, [rank], nn.parallel.DistributedDataParallel) for case in range(len(CASES))]
    torch.save(results, f'{folder}/{rank}.pt')
    leave_gloo()


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('ranks'))
    mp.spawn(work, (folder, ), nprocs=2)
    return [torch.load(f'{folder}/{rank}.pt', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('case', range(len(CASES)))
def test_two_ranks_equal_one(results, case):
    """Denoising x checkpointing x encoding, shared branches, a rank without objects."""
    expected = gradients(case, [0, 1])
    for rank in range(2):
        assert set(results[rank][case]) == set(expected)
        for name, gradient in results[rank][case].items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3,
                                       msg=lambda m, name=name: f'{name}: {m}')
