"""PETR's and StreamPETR's losses, gradients and boxes on the device against the CPU, and mixed precision there."""
import copy

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from model_factory import UROPE, features, metas, sample, stream_sample, tiny_head, tiny_streampetr
from test_gpu_encodings import ENCODINGS

CPU = torch.device('cpu')
HEADS = {name: dict(encoding=encoding, position_embedding=False)
         for name, encoding in ENCODINGS.items() if not name.startswith('self')}
HEADS |= {name: dict(encoding=UROPE, self_encoding=encoding)
          for name, encoding in ENCODINGS.items() if name.startswith('self')}
HEADS['depth loss'] = dict(encoding=dict(type='georope.WorldRoPE', bands=dict(type='mixed', learnable=True),
                                         temperature='token', depth_loss_weight=0.5))
SURE = dict(groups=2, noise_scale=0)  # generators of two devices draw other noise
COUNTS = {'objects': (3, 5), 'an empty frame': (3, 0), 'no object at all': (0, 0)}
HALF = {'float16': torch.float16, 'bfloat16': torch.bfloat16}


def finish(losses, model):
    """Losses as floats, and the gradients of their sum, on the CPU."""
    model.zero_grad()
    sum(loss for name, loss in losses.items() if 'loss' in name).backward()
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return ({name: loss.item() for name, loss in losses.items()},
            {name: parameter.grad.cpu() for name, parameter in model.named_parameters() if parameter.requires_grad})


def petr_step(options, device, counts=(3, 5)):
    head = tiny_head(denoising=SURE, **options).train().to(device)
    batch = [sample(f's{i}', count, seed=i) for i, count in enumerate(counts)]
    return finish(head.loss(features(len(counts)).to(device), batch), head)


def stream_batch(number, counts=(3, 5)):
    """What the loader gives for frame ``number`` of some scenes."""
    images = torch.randint(0, 255, (len(counts), 2, 3, 64, 96), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(number))
    return dict(inputs=dict(img=list(images)), data_samples=[
        stream_sample(f's{i}', number, count, seed=10 * number + i) for i, count in enumerate(counts)])


def stream(options, **further):
    return tiny_streampetr(head=dict(options, denoising=SURE), **further)


def call(model, data, mode):
    return model(**model.data_preprocessor(copy.deepcopy(data), mode == 'loss'), mode=mode)


def compare(actual, expected):
    (losses, gradients), (expected_losses, expected_gradients) = actual, expected
    assert losses.keys() == expected_losses.keys() and gradients.keys() == expected_gradients.keys()
    for name, loss in expected_losses.items():
        assert losses[name] == pytest.approx(loss, rel=1e-3, abs=1e-5), name
    least = 1e-3 * max(gradient.norm() for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        error = (gradients[name] - gradient).norm() / gradient.norm().clamp(min=least)
        assert error < 1e-2, (name, error)


@pytest.mark.parametrize('name', HEADS)
def test_petr_is_what_it_is_on_the_cpu(name, device, float32):
    compare(petr_step(HEADS[name], device), petr_step(HEADS[name], CPU))


@pytest.mark.parametrize('name', COUNTS)
@pytest.mark.parametrize('encoding', ['urope', 'worldrope-mixed', 'depth loss'])
def test_frames_without_objects(encoding, name, device, float32):
    compare(petr_step(HEADS[encoding], device, COUNTS[name]), petr_step(HEADS[encoding], CPU, COUNTS[name]))


def stream_steps(options, device, counts=(3, 5), roi=None):
    model = stream(options, roi=roi).to(device)
    return [finish(call(model, stream_batch(number, counts), 'loss'), model) for number in range(4)]


@pytest.mark.parametrize('name', ['none', 'urope', 'worldrope-mixed', 'self_bev-time'])
def test_streampetr_over_frames(name, device, float32):
    for actual, expected in zip(stream_steps(HEADS[name], device), stream_steps(HEADS[name], CPU)):
        compare(actual, expected)


@pytest.mark.parametrize('counts', COUNTS.values(), ids=COUNTS)
def test_streampetr_without_objects_and_with_chosen_tokens(counts, device, float32):
    roi = dict(train_ratio=0.5, infer_ratio=0.5)
    steps = [stream_steps(HEADS['urope'], where, counts, roi) for where in (device, CPU)]
    for actual, expected in zip(*steps):
        compare(actual, expected)


def test_boxes_of_a_stream(device, float32):
    """The same boxes, scores and labels; the order of almost equal scores may differ."""
    results = []
    for where in (device, CPU):
        model = stream(HEADS['worldrope']).to(where).eval()
        with torch.no_grad():
            results.append([predicted.pred_instances_3d for number in range(3)
                            for predicted in call(model, stream_batch(number), 'predict')])
    for found, expected in zip(*results):
        assert found.scores_3d.device.type == device.type and len(found) == len(expected) > 0
        found, expected = (torch.cat((boxes.bboxes_3d.tensor, 10 * boxes.scores_3d[:, None], boxes.labels_3d[:, None]),
                                     dim=1).cpu() for boxes in (found, expected))
        assert torch.cdist(expected, found, compute_mode='donot_use_mm_for_euclid_dist').amin(1).max() < 1e-3


# Greatest differences of losses, relative, and of centres, metres, to float32. Measured on a CPU: 8e-4 and 8 mm in
# float16, 4e-3 and 55 mm in bfloat16.
@pytest.mark.parametrize('dtype, of_loss, of_centre', [('float16', .005, .04), ('bfloat16', .02, .3)])
@pytest.mark.parametrize('name', HEADS)
def test_mixed_precision(name, dtype, of_loss, of_centre, device):
    results = []
    for autocast in (None, HALF[dtype]):
        head = tiny_head(denoising=SURE, **HEADS[name]).train().to(device)
        batch, tensor = [sample('a', 3), sample('b', 5, seed=1)], features(2).to(device)
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            losses = head.loss(tensor, batch)
            with torch.no_grad():
                codes = head.eval()(tensor, metas(batch))['codes']
        assert codes.dtype == torch.float32 and {loss.dtype for loss in losses.values()} == {torch.float32}
        results.append((*finish(losses, head), codes[..., :3].cpu()))
    (losses, gradients, centres), (half_losses, half_gradients, half_centres) = results
    assert losses != half_losses
    for key, loss in losses.items():
        assert half_losses[key] == pytest.approx(loss, rel=of_loss), key
    assert (half_centres - centres).norm(dim=-1).max() < of_centre
    flat, half_flat = (torch.cat([g.flatten() for g in group.values()]) for group in (gradients, half_gradients))
    assert torch.cosine_similarity(flat, half_flat, dim=0) > .99


@pytest.mark.parametrize('dtype', HALF)
def test_training_steps_with_loss_scaling(dtype, device):
    """mmengine's AMP wrapper, as the configs use it; it refuses a CPU, where this runs in float32. While the scale
    settles, steps whose gradients overflow are left out."""
    model = stream(HEADS['worldrope']).to(device)
    options = dict(optimizer=torch.optim.AdamW(model.parameters(), 1e-3), clip_grad=dict(max_norm=35, norm_type=2))
    if device.type == 'cuda':
        wrapper = AmpOptimWrapper(dtype=dtype, loss_scale='dynamic', **options)
    else:
        wrapper = OptimWrapper(**options)
    before = [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad]
    losses = [model.train_step(stream_batch(number), wrapper)['loss'].item() for number in range(16)]
    after = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert torch.tensor(losses).isfinite().all() and all(parameter.isfinite().all() for parameter in after)
    assert not any(map(torch.equal, before, after))
