"""Which kernels attention runs in, torch.compile, and two devices against one."""
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model_factory import features, sample, tiny_head
from test_gpu_encodings import ENCODINGS, Pass, errors
from test_gpu_models import HALF, HEADS, SURE, call, stream, stream_batch
from torch import nn

from georope.engine.launch import leave_gloo
from georope.rope import RotaryAttention, Rotation

sdpa = pytest.importorskip('torch.nn.attention', reason='torch.nn.attention.sdpa_kernel came with torch 2.3')


@pytest.fixture
def only(device):
    """``only('FLASH_ATTENTION')``: a context in which attention fails unless that kernel takes it. A CPU has one flash
    kernel, for all dtypes and masks, and no other."""
    def context(*names):
        names = names if device.type == 'cuda' else ['FLASH_ATTENTION']
        return sdpa.sdpa_kernel([getattr(sdpa.SDPBackend, name) for name in names])
    return context


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', ENCODINGS)
def test_cross_attention_runs_in_the_flash_kernel(name, dtype, device, only):
    with only('FLASH_ATTENTION'):
        run = Pass(name, device, torch.float32, autocast=HALF[dtype])
    assert run.dtypes['out'] == HALF[dtype]


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', ENCODINGS)
def test_with_padding_it_runs_in_the_memory_efficient_kernel(name, dtype, device, only):
    with only('EFFICIENT_ATTENTION'):
        run = Pass(name, device, torch.float32, autocast=HALF[dtype], padded=21)
    assert run.dtypes['out'] == HALF[dtype]


def test_the_contexts_refuse_what_no_kernel_takes(device, only):
    """Without this the tests above could not fail."""
    with only('FLASH_ATTENTION'), pytest.raises(RuntimeError):
        if device.type == 'cuda':
            Pass('urope', device, torch.float32)  # flash wants half precision
        else:
            q = torch.randn(1, 1, 4, 8)
            with sdpa.sdpa_kernel([sdpa.SDPBackend.EFFICIENT_ATTENTION]):
                nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', HEADS)
def test_petr_trains_without_the_plain_kernel(name, dtype, device, only):
    """Denoising masks self-attention, an image that is smaller than the batch's masks cross-attention."""
    head = tiny_head(denoising=SURE, **HEADS[name]).train().to(device)
    batch = [sample('a', 3), sample('b', 5, seed=1, img_shape=[(50, 90)] * 2)]
    with only('FLASH_ATTENTION', 'EFFICIENT_ATTENTION'):
        with torch.autocast(device.type, HALF[dtype]):
            loss = sum(head.loss(features(2).to(device), batch).values())
        loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', ['none', 'urope', 'worldrope-mixed', 'self_bev-time'])
def test_streampetr_trains_without_the_plain_kernel(name, dtype, device, only):
    model = stream(HEADS[name]).to(device)
    with only('FLASH_ATTENTION', 'EFFICIENT_ATTENTION'):
        for number in range(3):
            with torch.autocast(device.type, HALF[dtype]):
                loss, _ = model.parse_losses(call(model, stream_batch(number), 'loss'))
            loss.backward()
            assert loss.isfinite()


@pytest.mark.parametrize('predicted', [False, True], ids=['sure', 'expected'])
def test_compiled_attention(predicted, device):
    """The same output and gradients, rotations with gradients of their own included."""
    def run(attention, module):
        generator = torch.Generator().manual_seed(0)
        query, key, queries, keys = (torch.randn(2, length, 64, generator=generator).to(device).requires_grad_()
                                     for length in (20, 48, 20, 48))
        if predicted:
            keys, scale = keys[..., :32], keys[..., 32:33]
        rotations = [Rotation.from_phase(phase.unflatten(-1, (4, -1))[..., :8].transpose(1, 2)) for phase in (
            queries, keys)]
        if predicted:
            rotations[1].temperature = scale[:, None].exp()
        out = attention(query, key, key, *rotations)
        leaves = [query, key, queries, keys, *module.parameters()]
        return dict(out=out) | dict(enumerate(torch.autograd.grad(out.square().sum(), leaves)))

    torch.manual_seed(0)
    attention = RotaryAttention(64, 4).to(device)
    torch._dynamo.reset()
    results = [{key: x.detach().cpu().double() for key, x in run(function, attention).items()}
               for function in (torch.compile(attention), attention)]
    assert max(errors(*results).values()) < 1e-4


class Losses(nn.Module):

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, tensor, data_samples):
        return sum(self.head.loss(tensor, data_samples).values())


def gradients(ranks, device, wrap):
    """Of a batch of one frame per rank, the second without objects."""
    model = wrap(Losses(tiny_head(denoising=SURE, **HEADS['worldrope']).train()).to(device))
    batch = [sample(f'rank{rank}', 4 - 4 * rank, seed=rank) for rank in ranks]
    for _ in range(2):  # DDP complains about unused parameters in the second iteration
        model.zero_grad()
        model(features(2)[list(ranks)].to(device), batch).backward()
    return {name.removeprefix('module.'): p.grad.cpu() for name, p in model.named_parameters()}


def work(rank, folder, kind):
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == 'cuda' else torch.device(kind)
    if kind == 'cuda':
        torch.cuda.set_device(device)
    dist.init_process_group('nccl' if kind == 'cuda' else 'gloo', init_method=f'file://{folder}/store', rank=rank,
                            world_size=2)
    result = gradients([rank], device, lambda module: nn.parallel.DistributedDataParallel(
        module, device_ids=[rank] if kind == 'cuda' else None))
    torch.save(result, f'{folder}/{rank}.pt')
    leave_gloo()


def test_two_devices_are_one(tmp_path, device):
    """Gradients of two ranks, averaged by DDP, are those of one process with the whole batch."""
    if device.type == 'cuda' and torch.cuda.device_count() < 2:
        pytest.skip('needs two GPUs')
    mp.spawn(work, (str(tmp_path), device.type), nprocs=2)
    expected = gradients([0, 1], device, lambda module: module)
    for rank in range(2):
        result = torch.load(tmp_path / f'{rank}.pt', weights_only=True)
        assert result.keys() == expected.keys()
        for name, gradient in result.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3,
                                       msg=lambda m, name=name: f'{name}: {m}')
