"""Two gloo processes, one lane each, against one process with both lanes; no find_unused_parameters."""
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model_factory import features, stream_sample, tiny_streampetr
from torch import nn

CASES = (None, dict(groups=3, noise_scale=0))
COUNTS = ((1, 0), (0, 0), (3, 1))  # objects of the lanes, frame by frame


class Losses(nn.Module):

    def __init__(self, model):
        super().__init__()
        self.img_roi_head, self.pts_bbox_head = model.img_roi_head, model.pts_bbox_head
        self.frame_loss = type(model)._frame_loss

    def forward(self, tensor, data_samples):
        return sum(self.frame_loss(self, tensor, data_samples).values())


def gradients(denoising, lanes, wrap=lambda module: module):
    model = wrap(Losses(tiny_streampetr(head=dict(denoising=denoising), roi=dict(train_ratio=0.5))))
    steps = []
    for number, counts in enumerate(COUNTS):
        model.zero_grad()
        batch = [stream_sample(f'{lane}', number, counts[lane], seed=lane) for lane in lanes]
        model(features(2, channels=32, seed=number)[list(lanes)], batch).backward()
        steps.append({name.removeprefix('module.'): p.grad.clone() for name, p in model.named_parameters()
                      if p.requires_grad})
    return steps


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    torch.save([gradients(case, [rank], nn.parallel.DistributedDataParallel) for case in CASES], f'{folder}/{rank}.pt')
    dist.destroy_process_group()


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('lanes'))
    mp.spawn(work, (folder, ), nprocs=2)
    return [torch.load(f'{folder}/{rank}.pt', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('case', range(len(CASES)))
def test_two_ranks_equal_one(results, case):
    for number, expected in enumerate(gradients(CASES[case], [0, 1])):
        for rank in range(2):
            assert set(results[rank][case][number]) == set(expected)
            for name, gradient in results[rank][case][number].items():
                torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3,
                                           msg=lambda m, name=name: f'frame {number}, {name}: {m}')  # noqa: B023
