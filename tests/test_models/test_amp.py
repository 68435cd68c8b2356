"""A training step of every shipped config under autocast against float32: same weights, batch and draws."""
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial

import pytest
import torch
from shrunk_configs import PATHS, TWINS, batch, build, losses, shrink, total, windowed
from torch import Tensor, nn

from georope.models.box_code import CENTRE
from georope.rope import LearnedDepth

SCALE = 2 ** 10  # of the loss, as a GradScaler has it


def test_twins_shrink_to_one_model():
    assert {path.stem.partition('_')[0] for path in TWINS} == {
        f'{model}{encoding}' for model in ('petr', 'streampetr') for encoding in ('', '-urope', '-worldrope')}
    assert all(shrink(path) == shrink(plain) for path, plain in TWINS.items())


@dataclass
class Step:
    """Losses, gradient of their sum, centres (metres), and what the encodings made of cameras and points alone."""

    losses: dict[str, float]
    gradient: Tensor
    centres: list[Tensor]
    geometry: list[Tensor] = field(default_factory=list)


def step(model: nn.Module, dtype: torch.dtype) -> Step:
    """Of a copy of ``model``. The frame before it in a stream is float32's for all: which of its predictions are
    remembered may hang on a rounding."""
    model = copy.deepcopy(model)
    head = model.pts_bbox_head
    if hasattr(head, 'memory') and not windowed(model):
        losses(model, batch(model, 0))
    centres, geometry = [], []
    if hasattr(head, 'encoding'):
        head.register_forward_hook(lambda module, args, results: centres.append(results['codes'][..., CENTRE]))
        for encoding in (head.encoding, head.self_encoding):
            watch(encoding, geometry, head)
    with torch.autocast('cpu', dtype, enabled=dtype is not torch.float32):
        values = losses(model, batch(model, 1))
    assert all(value.dtype == torch.float32 for value in values.values())
    (SCALE * total(values)).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).double() / SCALE
    return Step({name: value.item() for name, value in values.items()}, gradient, centres, geometry)


def watch(encoding: nn.Module, seen: list[Tensor], head: nn.Module) -> None:
    """What it makes until the first decoder layer is done: later ones may have queries that moved to predictions."""
    passed = []
    head.register_forward_pre_hook(lambda *args: passed.clear())
    head.transformer['decoder'].layers[0].register_forward_hook(lambda *args: passed.append(True))

    def watched(method, *args, **kwargs):
        result = method(*args, **kwargs)
        if not passed:
            seen.extend(tensors(result))
        return result
    for name in ('prepare', 'embed_keys', 'rotate_queries'):
        setattr(encoding, name, partial(watched, getattr(encoding, name)))


def tensors(value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.detach()
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors(getattr(value, each.name))


def cosine(a: Tensor, b: Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_half_precision_against_float32(path):
    """Bounds in steps ``eps`` of the type (2^-7, 2^-10), measured on all configs:

    - a loss: 8 eps (1.2 where the same pairs are matched, 5 where an object takes another cell in one camera);
    - a centre: what one eps on a decoder output of size 1 makes of it, a sigmoid's greatest slope times the range, .2 m
      and .025 m (.07 m and .008 m);
    - the gradient's direction: cosines .98 and .995 (.991 and .9985); those of L1 losses and ReLUs jump.

    A sure predicted depth has no uncertainty that damps its short waves: twice the error of a centre, and a gradient
    that bfloat16 holds badly (cosines .900 and .997).
    """
    model = build(path, dropout=0.0)
    exact = step(model, torch.float32)
    sure = type(getattr(model.pts_bbox_head, 'encoding', None)) is LearnedDepth
    for dtype, alike in ((torch.bfloat16, 0.85 if sure else 0.98), (torch.float16, 0.99 if sure else 0.995)):
        half, eps = step(model, dtype), torch.finfo(dtype).eps
        assert half.losses != exact.losses
        assert half.gradient.isfinite().all() and cosine(half.gradient, exact.gradient) > alike
        for a, b in zip(half.geometry, exact.geometry, strict=True):
            assert a.dtype in (torch.float32, torch.complex64) and torch.equal(a, b)
        if windowed(model):  # what its frames remember hangs on roundings, and so do centres and single losses
            assert sum(half.losses.values()) == pytest.approx(sum(exact.losses.values()), rel=4 * eps)
            continue
        assert half.losses == pytest.approx(exact.losses, rel=8 * eps)
        for a, b in zip(half.centres, exact.centres, strict=True):
            lower, upper = model.pts_bbox_head.pc_range.chunk(2)
            assert (a - b).abs().max() < (2 if sure else 1) * eps * (upper - lower).max() / 4


RECOMPUTED = [path for path in PATHS if path.parent.name != 'toy' and re.search(
    'petr_r50|classic|mixed|learned|token|shared|pluecker|rayrope|worldrope_r50|urope-selfrope', path.stem)]


@pytest.mark.parametrize('autocast', [False, True], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('path', RECOMPUTED, ids=lambda path: path.stem)
def test_recomputing_changes_no_bit(path, autocast):
    """with_cp of decoder and backbone, with dropout: losses and gradients."""
    results = []
    for with_cp in (False, True):
        model = build(path, img_backbone=dict(with_cp=with_cp))
        decoder = model.pts_bbox_head.transformer['decoder']
        assert decoder.with_cp and decoder.layers[0].attentions[0].dropout.p > 0  # as shipped
        decoder.with_cp = with_cp
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            values = losses(model, batch(model))
        total(values).backward()
        results.append([*values.values(), *(p.grad for p in model.parameters() if p.requires_grad)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def untrained(model: nn.Module, data: dict) -> list[str]:
    """Parameters that a step on ``data`` leaves without a gradient, which DDP would wait for."""
    model.zero_grad()
    total(losses(model, data)).backward()
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_every_parameter_gets_a_gradient(path):
    """Without find_unused_parameters, whatever a batch holds; denoising on and off."""
    model = build(path)
    velocity = torch.full((2, ), torch.nan)
    unknown = batch(model, 1)
    for sample in unknown['data_samples']:
        for frame in getattr(sample, 'frames', [sample]):
            frame.gt_instances_3d.bboxes_3d.tensor[:, 7:] = velocity
    assert not untrained(model, batch(model, 0, (0, 0))) and not untrained(model, unknown)
    if getattr(model.pts_bbox_head, 'denoising', None) is not None:
        model.pts_bbox_head.denoising = None
        assert not untrained(model, batch(model, 2, (0, 0)))


@pytest.mark.parametrize('name', ['petr_r50_8xb2', 'streampetr_r50_8xb2-seq', 'streampetr_r50_8xb1-8key-2grad'])
def test_every_trained_parameter_gets_a_gradient_beside_frozen_stages_and_with_chosen_tokens(name):
    path = next(path for path in PATHS if path.stem == f'{name}-24e_nus-3d')
    roi = dict(img_roi_head=dict(train_ratio=0.5)) if 'stream' in name else {}
    model = build(path, img_backbone=dict(frozen_stages=2), **roi)
    assert not any(p.requires_grad for p in model.img_backbone.layer2.parameters())
    assert model.img_backbone.layer3[0].conv1.weight.requires_grad
    for number, counts in enumerate(((9, 0), (0, 0))):
        assert not untrained(model, batch(model, number, counts))
