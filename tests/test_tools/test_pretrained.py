"""Backbone weights: the share that fits is told, a near-empty match refused, through init_cfg and through load_from."""
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from torch import nn

from georope.engine import CheckWeightsHook, install_loaders
from georope.registry import MODELS

install_loaders()  # as the tools do

RESNET = dict(type='mmdet.ResNet', depth=18, base_channels=8)
VOVNET = dict(type='georope.VoVNet', spec='V-19-eSE')


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr('georope.engine.checkpoint.print_log', lambda text, logger: lines.append(text))
    return lines


def build(config, path, prefix=None, **options):
    init_default_scope('mmdet3d')
    init_cfg = dict(type='Pretrained', checkpoint=str(path), **options)
    model = MODELS.build(dict(config, init_cfg=init_cfg if prefix is None else dict(init_cfg, prefix=prefix)))
    model.init_weights()
    return model


def weights(config, prefix='', counters=True):
    """Random weights of a backbone, as a release names them."""
    init_default_scope('mmdet3d')
    return {prefix + name: torch.full(value.shape, 0.5).to(value.dtype)
            for name, value in MODELS.build(config).state_dict().items() if counters or 'num_batches' not in name}


# Backbone, prefix, content of the file, tensors in it that are no backbone's.
RELEASES = {
    'torchvision ResNet': (RESNET, None, lambda: {
        **weights(RESNET), 'fc.weight': torch.ones(9), 'fc.bias': torch.ones(9)}, 2),
    'nuImages ResNet (mmdet)': (RESNET, 'backbone.', lambda: {
        'state_dict': {**weights(RESNET, 'backbone.'), 'rpn_head.rpn_conv.weight': torch.ones(2)}, 'meta': {}}, 1),
    'FCOS3D VoVNet': (VOVNET, 'img_backbone.', lambda: {'state_dict': weights(VOVNET, 'img_backbone.')}, 0),
    'DD3D VoVNet (Detectron2)': (VOVNET, 'backbone.bottom_up', lambda: {
        'model': {**weights(VOVNET, 'backbone.bottom_up.', counters=False), 'fcos3d_head.x': torch.ones(2)}}, 1),
}


@pytest.mark.parametrize('release', RELEASES)
def test_releases(tmp_path, told, release):
    config, prefix, content, others = RELEASES[release]
    torch.save(content(), tmp_path / 'a.pth')
    model = build(config, tmp_path / 'a.pth', prefix)
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    count = len(weights(config, counters=False))
    assert f'{count} of the {count} tensors of {type(model).__name__} come from' in told[-1]
    assert f'; {others} of its' in told[-1] and 'not in it' not in told[-1]


def test_what_is_missing_is_named(tmp_path, told):
    content = weights(RESNET)
    del content['conv1.weight']
    content['bn1.bias'] = torch.ones(3)
    torch.save(content, tmp_path / 'a.pth')
    model = build(RESNET, tmp_path / 'a.pth')
    assert (model.bn1.weight == 0.5).all()
    assert told[-1].endswith('not in it, or of another shape: conv1.weight, bn1.bias')


@pytest.mark.parametrize('prefix', [None, 'backbone.'])
def test_a_wrong_prefix_is_refused_and_the_right_one_named(tmp_path, prefix):
    torch.save(weights(VOVNET, 'img_backbone.'), tmp_path / 'a.pth')
    with pytest.raises(RuntimeError, match=r"only 0 of the 103 .* VoVNet .*prefix='img_backbone.' it would be 103"):
        build(VOVNET, tmp_path / 'a.pth', prefix)


def test_another_backbone_is_refused(tmp_path):
    torch.save(weights(dict(RESNET, base_channels=16)), tmp_path / 'a.pth')
    with pytest.raises(RuntimeError, match='of another model, e.g. it has conv1.weight'):
        build(RESNET, tmp_path / 'a.pth')


def test_a_small_part_may_be_meant(tmp_path, told):
    torch.save({'conv1.weight': torch.full((8, 3, 7, 7), 0.5)}, tmp_path / 'a.pth')
    with pytest.raises(RuntimeError, match=r'only 1 of the .*if that is meant: init_cfg=dict\(..., partial=True\)'):
        build(RESNET, tmp_path / 'a.pth')
    model = build(RESNET, tmp_path / 'a.pth', partial=True)
    assert (model.conv1.weight == 0.5).all() and told[-1].startswith('1 of the ')
    torch.save({'other': torch.ones(1)}, tmp_path / 'a.pth')
    with pytest.raises(RuntimeError, match='only 0 of the .*of another model'):
        build(RESNET, tmp_path / 'a.pth', partial=True)


def load_from(model, checkpoint, accept=False):
    runner = SimpleNamespace(model=model, logger=MMLogger.get_current_instance(), cfg=None)
    CheckWeightsHook('init', accept).after_load_checkpoint(runner, checkpoint)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        init_default_scope('mmdet3d')
        self.img_backbone, self.pts_bbox_head = MODELS.build(RESNET), nn.Linear(2, 2)


def test_load_from_tells_the_share_of_each_part(monkeypatch):
    lines = []
    monkeypatch.setattr(MMLogger.get_current_instance(), 'info', lines.append)
    load_from(Detector(), {'state_dict': weights(RESNET, 'img_backbone.', counters=False)})
    assert lines[-1].endswith('img_backbone 100%, pts_bbox_head 0%')


def test_load_from_refuses_what_fills_no_part():
    few = dict(list(weights(RESNET, 'img_backbone.').items())[:9])
    for checkpoint in (weights(RESNET), few):  # without the prefix of the detector; 8 tensors and a counter
        with pytest.raises(RuntimeError, match='load_from: only .*img_backbone .%, pts_bbox_head 0%; for the weights'):
            load_from(Detector(), {'state_dict': checkpoint})


def test_load_from_may_fill_a_small_part_if_that_is_accepted(monkeypatch):
    few = {'state_dict': dict(list(weights(RESNET, 'img_backbone.').items())[:9])}
    with pytest.raises(RuntimeError, match='or go on all the same: --accept-weights$'):
        load_from(Detector(), few)
    warnings = []
    monkeypatch.setattr('georope.engine.hooks.print_log', lambda text, **options: warnings.append(text))
    load_from(Detector(), few, accept=True)
    assert warnings[0].startswith('accepted: load_from: only 9 of the ')
