"""tools/convert_checkpoint.py: boxes keep their corners, files are whole, what is not known is refused.

That converted weights reproduce the references is shown in tests/test_models/test_golden_*.py.
"""
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import main
from mmengine.config import Config
from mmengine.registry import init_default_scope
from tiny_model import ROOT

from georope.engine import CheckWeightsHook, load_from_local
from georope.models.box_code import decode, to_lidar_boxes
from georope.models.conversion import ERAS, convert
from georope.registry import MODELS

BASE = f'''
_base_ = ['{ROOT}/configs/_base_/models/petr_r50.py', '{ROOT}/configs/_base_/default_runtime.py']
class_names = ['car', 'bus']
model = dict(
    img_backbone=dict(depth=18, base_channels=8),
    img_neck=dict(in_channels=[32, 64], out_channels=16),
    pts_bbox_head=dict(num_classes=2, num_query=7, in_channels=16, embed_dims=32,
                       decoder=dict(num_layers=2, num_heads=4, feedforward_channels=32)))
'''
HEADS = {
    'stream': '',
    'classic': "model['pts_bbox_head'].update(type='georope.PETRClassicHead', denoising=None)\n",
}
CONVOLUTIONS = ('input_proj', 'position_encoder', 'adapt_pos3d')
H = 'pts_bbox_head.'


@pytest.fixture
def config(tmp_path):
    def write(layout):
        path = tmp_path / f'{layout}.py'
        path.write_text(BASE + HEADS[layout])
        return path
    return write


def build(path, **head):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({f'model.pts_bbox_head.{key}': value for key, value in head.items()})
    init_default_scope('mmdet3d')
    return MODELS.build(cfg.model)


def released(layout, path):
    """Random weights with the names and shapes of a release."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, value in build(path).state_dict().items():
        if value.is_floating_point():
            value = torch.rand(value.shape, generator=generator)
        if layout == 'classic' and name.startswith(tuple(H + part for part in CONVOLUTIONS)) and value.dim() == 2:
            value = value[..., None, None]
        weights[name] = value
    for name in [name for name in weights if '_branches.0.' in name]:  # six names, whatever the number of layers
        weights |= {name.replace('.0.', f'.{layer}.', 1): weights[name] for layer in range(6)}
    weights[H + 'code_weights'] = torch.tensor([1] * 8 + [0.2] * 2)
    if layout == 'stream':
        index = torch.arange(64)
        weights |= {H + 'pc_range': torch.tensor([-51.2, -51.2, -5, 51.2, 51.2, 3]),
                    H + 'coords_d': 1 + (61.2 - 1) / (64 * 65) * index * (index + 1)}
    return weights


def write(path, weights, meta=None):
    torch.save(dict(state_dict=weights, meta=meta or {}, optimizer=dict(state={})), path)
    return path


@pytest.mark.parametrize('layout', HEADS)
def test_from_file_to_file(config, tmp_path, layout, capsys):
    path, source, out = config(layout), tmp_path / 'released.pth', tmp_path / 'new/out.pth'
    weights = released(layout, path)
    # As mmcv saved it: version in the meta, names with DDP's prefix.
    write(source, {f'module.{name}': value for name, value in weights.items()}, dict(mmdet3d_version='0.17.1'))
    main('convert_checkpoint', path, source, out)
    result = torch.load(out, weights_only=True)
    assert [file.name for file in out.parent.iterdir()] == ['out.pth']
    model = build(path)
    model.load_state_dict(result['state_dict'])
    assert result['meta']['converted_from'] == 'released.pth' and result['meta']['dataset_meta']['classes']
    runner = SimpleNamespace(model=model, cfg=Config.fromfile(path))
    CheckWeightsHook('test').after_load_checkpoint(runner, result)
    with pytest.raises(RuntimeError, match='tools/convert_checkpoint.py'):
        CheckWeightsHook('init').after_load_checkpoint(runner, load_from_local(source))

    report = capsys.readouterr().out
    assert f'layout {layout}, boxes of mmdet3d-{"1.x" if layout == "stream" else "0.x"}' in report
    assert f'{H}cls_branches.5.0.weight: another name of layer 0' in report and 'missing: 0 tensors' in report
    assert (f'{H}input_proj.weight: 1x1 convolution as linear layer' in report) == (layout == 'classic')
    assert ('compat=True' in report) == (layout == 'stream')
    for name in ('img_backbone.conv1.weight', 'img_neck.lateral_convs.0.conv.bias', H + 'query_embedding.0.weight'):
        assert torch.equal(result['state_dict'][name], weights[name])


def corners(code, era, classic):
    """Corners and heading of a box, as the sources define their numbers: independent of the converter."""
    cx, cy, *others = code[:2] + (code[4:5] + code[2:4] + code[5:6] if classic else code[2:6]) + code[6:8]
    cz, first, second, height, sine, cosine = others
    angle = math.atan2(sine, cosine)
    sizes = np.exp([first, second, height])
    points = np.array(np.meshgrid([-.5, .5], [-.5, .5], [-.5, .5])).reshape(3, 8) * sizes[:, None]
    if era == 'mmdet3d-0.x':  # width along x, length along y, turned clockwise
        turned, heading = -angle, -angle - math.pi / 2
    else:
        turned = heading = angle if era == 'mmdet3d-1.x' else -angle - math.pi / 2
    c, s = math.cos(turned), math.sin(turned)
    points = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ points + np.array([[cx], [cy], [cz]])
    return points.T, heading


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    folder, result = tmp_path_factory.mktemp('models'), {}
    for layout, text in HEADS.items():
        path = folder / f'{layout}.py'
        path.write_text(BASE + text)
        result[layout] = build(path), released(layout, path)
    return result


@pytest.mark.parametrize('layout', HEADS)
@pytest.mark.parametrize('era', ERAS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_boxes_keep_corners_heading_and_velocity(models, layout, era, seed):
    """The last layer, before and after, on the same feature: one box."""
    model, weights = models[layout]
    rng = np.random.RandomState(seed)
    weight, bias = (torch.from_numpy(rng.uniform(-1, 1, shape)) for shape in ((10, 32), 10))
    weights = dict(weights)
    for layer in range(6):
        weights[f'{H}reg_branches.{layer}.4.weight'] = weight.float()
        weights[f'{H}reg_branches.{layer}.4.bias'] = bias.float()
    state = convert(weights, model, era).state_dict
    feature = torch.from_numpy(rng.uniform(-.3, .3, 32)).float()
    before = (weight.float() @ feature + bias.float()).tolist()
    after = state[f'{H}reg_branches.0.4.weight'] @ feature + state[f'{H}reg_branches.0.4.bias']
    boxes = to_lidar_boxes(decode(after)[None])
    expected, heading = corners(before, era, layout == 'classic')
    actual = boxes.corners[0].double().numpy()
    assert np.abs(actual[:, None] - expected).sum(-1).min(0).max() < 1e-4
    assert math.cos(boxes.yaw.item() - heading) == pytest.approx(1, abs=1e-5)
    assert boxes.tensor[0, 7:].tolist() == pytest.approx(before[8:], abs=1e-5)


def test_eras_differ():
    """Or the test above shows little."""
    code = [1.0, 2.0, 0.5, 1.5, 0.3, 0.4, 0.6, 0.8, 0.0, 0.0]
    found = [corners(code, era, True)[0] for era in ERAS]
    assert all(np.abs(a[:, None] - b).sum(-1).min(0).max() > 0.3 for i, a in enumerate(found) for b in found[:i])


def change(**changes):
    """Sets tensors of the head; None takes one away."""
    def apply(weights):
        for name, value in changes.items():
            if value is None:
                del weights[H + name]
            else:
                weights[H + name] = value
    return apply


def not_finite(weights):
    weights['img_backbone.conv1.weight'][0, 0, 0, 0] = math.nan


REFUSED = {
    'PETRv2': ('classic', change(**{'fpe.conv_reduce.weight': torch.ones(1)}), 'no place for 1 .*fpe.conv_reduce'),
    'deformable attention': ('stream', change(**{'sampling.weight': torch.ones(1)}), 'no place for 1 .*sampling'),
    'an exponential average': ('stream', lambda weights: weights.update(ema_a=torch.ones(1)), 'no place for .*ema_a'),
    'DETR3D': ('classic', change(**{'input_proj.weight': None}), 'unknown layout.*input_proj.weight'),
    'a backbone': ('stream', lambda weights: [weights.pop(k) for k in list(weights) if H in k], 'init_cfg'),
    'ours': ('stream', change(code_weights=None, pc_range=None, coords_d=None), 'converted already'),
    'fewer queries': ('stream', change(**{'reference_points.weight': torch.ones(5, 3)}), r'shape \(5, 3\)'),
    'a layer less': ('stream', change(**{'transformer.decoder.layers.1.norms.2.bias': None}), 'lacks 1 .*norms.2.bias'),
    'other ranges': ('stream', change(pc_range=torch.tensor([-54.0, -54, -5, 54, 54, 3])), 'pc_range .*another space'),
    'own branches': ('stream', change(**{'cls_branches.1.0.bias': torch.zeros(32)}), 'cls_branches.1.0.bias differs'),
    'not finite': ('stream', not_finite, 'not finite: img_backbone.conv1.weight'),
    'an untold era': ('classic', lambda weights: None, '--box-era.*mmdet3d-0.x.*projects-petr.*mmdet3d-1.x'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_refused(config, tmp_path, case):
    layout, spoil, message = REFUSED[case]
    weights = released(layout, config(layout))
    spoil(weights)
    write(tmp_path / 'released.pth', weights)
    era = [] if case == 'an untold era' else ['--box-era', 'projects-petr']
    with pytest.raises(SystemExit, match=f'released.pth: .*{message}'):
        main('convert_checkpoint', config(layout), tmp_path / 'released.pth', tmp_path / 'out.pth', *era)
    assert not (tmp_path / 'out.pth').exists()


def test_code_in_the_file_is_not_run(config, tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f'touch {tmp_path}/marker', )

    torch.save(dict(state_dict={}, meta=Attack()), tmp_path / 'released.pth')
    with pytest.raises(Exception, match='could run any code'):
        main('convert_checkpoint', config('stream'), tmp_path / 'released.pth', tmp_path / 'out.pth')
    assert not (tmp_path / 'marker').exists()


def test_an_interrupted_write_leaves_nothing(config, tmp_path, monkeypatch):
    source = write(tmp_path / 'released.pth', released('stream', config('stream')))

    def half(content, path):
        Path(path).write_bytes(b'half')
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, 'save', half)
    with pytest.raises(KeyboardInterrupt):
        main('convert_checkpoint', config('stream'), source, tmp_path / 'out/out.pth')
    assert not list((tmp_path / 'out').iterdir())


def test_an_existing_file_is_kept(config, tmp_path, capsys):
    (tmp_path / 'a.pth').write_bytes(b'mine')
    with pytest.raises(SystemExit):
        main('convert_checkpoint', config('stream'), tmp_path / 'a.pth', tmp_path / 'a.pth')
    assert 'exists already' in capsys.readouterr().err and (tmp_path / 'a.pth').read_bytes() == b'mine'


def test_what_may_be_missing_or_left(models):
    """A 2D head that only one side has, and batch norm counters, are reported and no error."""
    model, weights = models['stream']
    counter = 'img_backbone.bn1.num_batches_tracked'
    weights = {name: value for name, value in weights.items() if name != counter}
    result = convert(weights | {'img_roi_head.cls.weight': torch.ones(1)}, model)
    assert result.missing == [counter] and result.left['img_roi_head.cls.weight'] == 'not in this model'
    assert len(result.matched) + len(result.converted) == len(result.state_dict) == len(model.state_dict()) - 1
