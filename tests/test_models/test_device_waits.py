"""How often the host waits for the device, and that CPU and device never mix, counted on a pretended device."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from model_factory import stream_sample
from pretended_device import DEVICE, PretendedDevice, pretended
from torch.nn import functional as F

from georope.models import TokenClassifierHead
from georope.registry import MODELS
from georope.rope.transfer import to_device

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SIZE = (64, 96)
# Recipes whose layers, losses, augmentations and costs count; what only takes time is made small.
SMALL = dict(
    img_backbone=dict(depth=18, base_channels=8, with_cp=False, init_cfg=None),
    img_neck=dict(in_channels=[32, 64]),
    pts_bbox_head=dict(num_query=20, decoder=dict(feedforward_channels=32, with_cp=False)))
SMALL_STREAM = SMALL | dict(pts_bbox_head=SMALL['pts_bbox_head'] | dict(
    memory_len=24, topk_proposals=8, num_propagated=8))
CHOICE = dict(img_roi_head=dict(train_ratio=0.5, infer_ratio=0.5))  # of image tokens
TRAIN, STREAM_TRAIN, PREDICT = 12, 20, 3  # the most waits of a step


def build(path, **options):
    init_default_scope('mmdet3d')
    config = Config.fromfile(CONFIGS / path)
    config.merge_from_dict(dict(model=options))
    torch.manual_seed(0)
    model = MODELS.build(config.model)
    model.init_weights()
    return model


def batch(frame, num_cameras=6):
    """Two samples, the second without objects."""
    samples = [stream_sample(scene, frame, count, num_cameras=num_cameras) for scene, count in (('a', 3), ('b', 0))]
    images = [torch.from_numpy(np.random.RandomState(i).randint(0, 255, (num_cameras, 3, *SIZE), dtype=np.uint8))
              for i in range(2)]
    return dict(inputs=dict(img=images), data_samples=samples)


def step(model, frame, mode):
    """From what the data loader gives to gradients or boxes."""
    if model.training != (mode == 'loss'):
        model.train(mode == 'loss')
    results = model(**model.data_preprocessor(batch(frame), mode == 'loss'), mode=mode)
    if mode == 'loss':
        model.parse_losses(results)[0].backward()
    return results


def count(model, device, mode):
    """Of a step; of a stream's second frame, since in the first one there is no memory yet."""
    for frame in range(2 if hasattr(model, 'img_roi_head') else 1):
        device.clear()
        results = step(model, frame, mode)
    return results


@pytest.mark.parametrize('path, most, options', [
    ('petr/petr-urope_r50_8xb2-24e_nus-3d.py', TRAIN, SMALL),
    ('petr/petr-urope-hybrid_r50_8xb2-24e_nus-3d.py', TRAIN, SMALL),
    ('ablations/petr-worldrope-depthloss_r50_8xb2-24e_nus-3d.py', TRAIN, SMALL),
    ('streampetr/streampetr-worldrope_r50_8xb2-seq-24e_nus-3d.py', STREAM_TRAIN, SMALL_STREAM),
    ('streampetr/streampetr_r50_8xb2-seq-24e_nus-3d.py', STREAM_TRAIN, SMALL_STREAM | CHOICE),
], ids=['urope', 'hybrid', 'depth loss', 'stream', 'stream with a choice of tokens'])
def test_a_step_waits_seldom(path, most, options):
    model = build(path, **options)
    with PretendedDevice() as device:
        model.to(DEVICE)
        count(model, device, 'loss')
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        assert 0 < device.count <= most, device.report()
        assert device.float64.total() < 10_000, device.float64  # none per token or channel
        results = count(model, device, 'predict')
        assert 0 < device.count <= PREDICT, device.report()
        assert results[0].pred_instances_3d.scores_3d.device == DEVICE


@pytest.mark.parametrize('path', sorted(path.name for path in (CONFIGS / 'toy').glob('*.py')))
def test_no_toy_config_mixes_devices(path):
    model = build(f'toy/{path}', init_cfg=None)
    limits = dict(loss=STREAM_TRAIN if hasattr(model, 'img_roi_head') else TRAIN, predict=PREDICT)
    if isinstance(model.pts_bbox_head, TokenClassifierHead):
        limits = dict(loss=0)  # no assignment, no boxes
    with PretendedDevice() as device:
        model.to(DEVICE)
        for mode, limit in limits.items():
            count(model, device, mode)
            assert device.count <= limit, device.report()


def test_the_pretended_device_computes_what_the_cpu_does():
    def losses(model, place):
        torch.manual_seed(1)
        return {name: loss.to('cpu') for name, loss in step(model.to(place), 0, 'loss').items()}

    options = SMALL_STREAM | dict(data_preprocessor=dict(batch_augments=None))
    options['pts_bbox_head'] = options['pts_bbox_head'] | dict(decoder=dict(dropout=0.0, with_cp=False))
    expected = losses(build('streampetr/streampetr-worldrope_r50_8xb2-seq-24e_nus-3d.py', **options), 'cpu')
    model = build('streampetr/streampetr-worldrope_r50_8xb2-seq-24e_nus-3d.py', **options)
    with PretendedDevice():
        actual = losses(model, DEVICE)
    assert set(actual) == set(expected)
    for name, loss in expected.items():
        torch.testing.assert_close(actual[name], loss, msg=name)


def waits(function):
    with PretendedDevice() as device:
        x = pretended(torch.arange(6.0).view(2, 3))
        device.clear()
        function(x)
        return device


@pytest.mark.parametrize('function, kind', [
    (lambda x: x.sum().item(), 'item'),
    (lambda x: bool((x > 0).any()), 'item'),
    (lambda x: x.tolist(), 'tolist'),
    (lambda x: x.cpu(), 'copy to host'),
    (lambda x: x.to('cpu', non_blocking=True), 'copy to host'),
    (lambda x: x.nonzero(), 'nonzero'),
    (lambda x: x[x > 1], 'boolean index'),
    (lambda x: x[[1, 0]], 'index of the host'),
    (lambda x: x.new_tensor([1.0]), 'copy to device'),
    (lambda x: torch.tensor([1.0], device=x.device), 'copy to device'),
    (lambda x: torch.ones(3).to(x.device, non_blocking=True), 'copy to device'),  # pageable
    (lambda x: torch.ones(3).pin_memory().to(x.device), 'copy to device'),  # blocking
    (lambda x: x.copy_(torch.ones(2, 3)), 'copy to device'),
    (lambda x: torch.linalg.inv(x @ x.T), 'linalg error check'),
    (lambda x: x.unique(), 'unique'),
    (lambda x: x.repeat_interleave((x[:, 0] >= 0).long(), 0), 'repeat_interleave'),
])
def test_what_waits(function, kind):
    device = waits(function)
    assert [of for of, _ in device.waits.elements()] == [kind]
    assert 'test_device_waits.py' in device.report()


@pytest.mark.parametrize('function', [
    lambda x: to_device(torch.ones(3), x.device) + x,
    lambda x: x.masked_fill(x > 1, 0),
    lambda x: x.index_put_((x > 1, ), x.new_zeros(())),
    lambda x: x[(x[:, 0] >= 0).long()],
    lambda x: F.one_hot(x.long(), 6),
    lambda x: torch.zeros(3, device=x.device) + torch.arange(3, device=x.device) + torch.full_like(x, 2),
    lambda x: torch.linalg.inv_ex(x @ x.T),
    lambda x: x.argsort().split([1, 2], 1),
    lambda x: x + torch.tensor(1.0),
], ids=range(9))
def test_what_does_not_wait(function):
    assert waits(function).count == 0


@pytest.mark.parametrize('function', [
    lambda x: x + torch.ones(3),
    lambda x: torch.cat((x.flatten(), torch.tensor([1.0]))),
    lambda x: torch.ones(3)[x.long()[0]],
    lambda x: F.linear(x, torch.ones(2, 3)),
])
def test_devices_that_mix(function):
    with pytest.raises(RuntimeError, match='on the CPU and on the pretended device'):
        waits(function)


def test_float64_is_counted_where_it_is_written():
    device = waits(lambda x: (x.double() * 2).view(-1).float())
    assert device.float64.total() == 12 and 'test_device_waits.py' in next(iter(device.float64))


def test_a_new_item_is_noticed(monkeypatch):
    """An ``.item()`` in the loss of every layer, as somebody might add it."""
    model = build('petr/petr-urope_r50_8xb2-24e_nus-3d.py', **SMALL)
    head, box_loss = model.pts_bbox_head, model.pts_bbox_head._box_loss

    def with_item(*args):
        loss = box_loss(*args)
        assert loss.item() >= 0
        return loss

    monkeypatch.setattr(head, '_box_loss', with_item)
    with PretendedDevice() as device:
        count(model.to(DEVICE), device, 'loss')
    assert device.count > TRAIN and 'with_item' in device.report()
