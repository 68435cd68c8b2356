"""What reaches scaled_dot_product_attention under autocast: the flash and the memory-efficient kernel must be able to
take it. Flash takes no mask; for the other PyTorch itself pads rows of a mask that are not aligned."""
import pytest
import torch
from mmengine.config import Config
from model_factory import CONFIGS, features, metas, sample, stream_sample, tiny_head
from torch.nn import functional as F

from georope.models.assignment import read_targets

ENCODINGS = sorted(path.stem for path in (CONFIGS / '_base_/encodings').glob('*.py'))
MEMORY = dict(type='georope.StreamPETRHead', num_query=8, memory_len=8, topk_proposals=4, num_propagated=4)
LAYERS = 2


def make(name, options):
    part = 'self_encoding' if name.startswith('self_') else 'encoding'
    encoding = Config.fromfile(CONFIGS / f'_base_/encodings/{name}.py')[part].to_dict()
    return tiny_head(**options, **{part: encoding}, embed_dims=64, in_channels=64, decoder=dict(
        num_layers=LAYERS, num_heads=4, feedforward_channels=32, dropout=0.0))


@pytest.fixture
def calls(monkeypatch):
    """Queries, keys, values and mask of every call; the calls themselves go through."""
    recorded, attend = [], F.scaled_dot_product_attention

    def record(query, key, value, attn_mask=None, **options):
        recorded.append((query, key, value, attn_mask))
        return attend(query, key, value, attn_mask=attn_mask, **options)
    monkeypatch.setattr(F, 'scaled_dot_product_attention', record)
    return recorded


def run(head, dtype, samples, denoising=None):
    with torch.autocast('cpu', dtype=dtype):
        return head(features(len(samples), channels=64), metas(samples), denoising)


def check(calls, dtype, masked):
    """``masked``: whether self- and cross-attention have a mask."""
    assert len(calls) == 2 * LAYERS
    for i, (query, key, value, mask) in enumerate(calls):
        for x in (query, key, value):
            assert x.dtype == dtype
            assert x.stride(-1) == 1 and all(step % 8 == 0 for step in x.stride()[:-1]) and x.data_ptr() % 16 == 0
        assert (mask is not None) == masked[i % 2]
        if mask is not None:
            assert mask.dtype == torch.bool and mask.is_contiguous() and mask.dim() == 4
            batch, _, queries, keys = (*query.shape[:3], key.shape[2])
            assert mask.shape[0] in (1, batch) and mask.shape[1] == 1
            assert mask.shape[2] in (1, queries) and mask.shape[3] == keys
    calls.clear()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=['bfloat16', 'float16'])
@pytest.mark.parametrize('options', [{}, MEMORY], ids=['petr', 'stream'])
@pytest.mark.parametrize('name', ENCODINGS)
def test_half_precision_aligned_and_unmasked_where_nothing_is_hidden(name, options, dtype, calls):
    head = make(name, options)
    batches = [[stream_sample(scene, frame, num_boxes=count) for scene, count in (('a', 1), ('b', 3))]
               for frame in range(2)]
    targets = read_targets(batches[0], 10, torch.device('cpu'))
    noisy = head.denoising(targets, head.pc_range, head.num_predictions, head.num_classes)
    results = run(head.train(), dtype, batches[0], noisy)
    check(calls, dtype, (True, False))
    (results['logits'].sum() + results['codes'].sum()).backward()
    for parameter in head.transformer.parameters():
        assert parameter.grad.isfinite().all()

    head.eval()
    with torch.no_grad():
        for frame in range(2):  # a memory of 8 starts with 4 points, and the first frame adds 4
            run(head, dtype, batches[frame])
            check(calls, dtype, (bool(options) and not frame, False))


def test_padding_is_one_row_per_sample(calls):
    samples = [sample(img_shape=[(64, 96)] * 2), sample(img_shape=[(64, 60)] * 2)]
    run(make('urope', {}).eval(), torch.bfloat16, samples)
    shapes = {tuple(mask.shape) for *_, mask in calls if mask is not None}
    assert shapes == {(2, 1, 1, 48)}
    check(calls, torch.bfloat16, (False, True))
