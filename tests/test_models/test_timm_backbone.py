"""timm's models by name: maps, freezing, recomputing, weights, layers; the torchvision that is not there."""
import importlib.metadata
import importlib.util
import sys

import pytest
import torch
from torch import nn

from georope.engine import LayerDecayConstructor
from georope.models import PETR, EvaViT, TimmBackbone
from georope.models.timm_backbone import import_timm

TINY = {  # name -> options that make it tiny, channels, strides, layers
    'convnext_tiny': (dict(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), out_indices=(2, 3)), (24, 32), (16, 32), 4),
    'swin_tiny_patch4_window7_224': (dict(embed_dim=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), img_size=(64, 96),
                                          window_size=4, out_indices=(2, 3)), (32, 64), (16, 32), 4),
    'vit_small_patch14_dinov2': (dict(embed_dim=16, depth=3, num_heads=2, patch_size=16, dynamic_img_size=True,
                                      out_indices=(1, )), (16, ), (16, ), 2),
    'resnet18': (dict(out_indices=(3, 4)), (256, 512), (16, 32), 5),
}


def build(name, **options):
    torch.manual_seed(0)
    return TimmBackbone(name, **TINY[name][0] | options)


@pytest.mark.parametrize('name', TINY)
def test_maps_gradients_and_recomputing(name):
    """Channels and strides are as told; every parameter has a gradient; with_cp changes none."""
    _, channels, strides, _ = TINY[name]
    images = torch.rand(2, 3, 64, 96)
    gradients = []
    for with_cp in (False, True):
        model = build(name, with_cp=with_cp, norm_eval=True).train()
        assert (model.channels, model.strides) == (channels, strides)
        maps = model(images)
        assert [tuple(x.shape) for x in maps] == [(2, c, 64 // s, 96 // s) for c, s in zip(channels, strides)]
        sum(x.square().sum() for x in maps).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
        assert [name for name, gradient in gradients[-1].items() if gradient is None] == []
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', TINY)
def test_frozen_stages(name):
    """-1 nothing, 0 the stem, 1 the first stage too, whose norms and dropout are those of evaluation."""
    frozen = []
    for stages in (-1, 0, 1):
        model = build(name, frozen_stages=stages, norm_eval=False).train()
        frozen.append({key for key, parameter in model.named_parameters() if not parameter.requires_grad})
        assert frozen[-1] == {key for key, stage in model.layer_ids(stages=True).items() if stage <= stages}
        for part in set(model.modules()) - {model.features.model}:  # its own parameters are tokens
            own = list(part.parameters(recurse=False))
            assert not own or part.training == any(parameter.requires_grad for parameter in own)
    assert frozen[0] == set() < frozen[1] < frozen[2] < set(dict(model.named_parameters()))
    stem = {'convnext_tiny': 'stem.', 'resnet18': ('conv1.', 'bn1.')}.get(name, ('patch_embed.', 'pos_', 'cls_'))
    assert all(key.removeprefix('features.model.').startswith(stem) for key in frozen[1])


def test_weights_of_a_file_are_read_when_training_starts(tmp_path):
    """timm's own files, classifier and last stages included; another model's are refused."""
    import timm
    source = timm.create_model('convnext_tiny', depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    torch.save(source.state_dict(), tmp_path / 'a.pth')
    model = build('convnext_tiny', pretrained=tmp_path / 'a.pth', out_indices=(1, 2))
    own = model.features.model.stages[0].blocks[0].mlp.fc1.weight
    expected = source.stages[0].blocks[0].mlp.fc1.weight
    assert not torch.equal(own, expected)
    model.init_weights()
    assert torch.equal(own, expected)
    with pytest.raises(RuntimeError, match='size mismatch'):
        build('convnext_tiny', pretrained=tmp_path / 'a.pth', dims=(8, 16, 24, 48)).init_weights()


def test_an_unknown_name_is_told():
    with pytest.raises(ValueError, match="no model 'convnext_tinny'; it has convnext_"):
        TimmBackbone('convnext_tinny')


def test_a_neck_of_other_channels_is_refused():
    with pytest.raises(ValueError, match=r'in_channels=\[16, 32\] are not .* \[24, 32\] at strides \[16, 32\]'):
        PETR(dict(type='georope.TimmBackbone', name='convnext_tiny', **TINY['convnext_tiny'][0]),
             dict(type='georope.CPFPN', in_channels=[16, 32], out_channels=8, num_outs=1), pts_bbox_head={})


def test_nobody_sees_a_torchvision_that_is_not_installed():
    """Whoever looks for it afterwards, as mmengine does for its log, finds what is installed."""
    assert import_timm().is_model('convnext_tiny')
    installed = importlib.metadata.packages_distributions().get('torchvision') is not None
    assert installed == ('torchvision' in sys.modules) == any(name.startswith('torchvision.') for name in sys.modules)
    assert installed == (importlib.util.find_spec('torchvision') is not None)


class Detector(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.img_backbone, self.head = backbone, nn.Linear(2, 2)


def rates(model, **paramwise):
    constructor = LayerDecayConstructor(dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1., weight_decay=.1)),
                                        paramwise)
    groups = constructor(model).optimizer.param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert sum(len(group['params']) for group in groups) == len(names)
    return {names[group['params'][0]]: group['lr'] for group in groups}


def test_layer_decay_is_that_of_streampetrs_vit_l():
    """Its docs/ViT_Large.md: 24 blocks, 0.9, head 4 times: rates of EVA's rule (0.9 ** (depth + 1 - layer))."""
    with torch.device('meta'):
        model = Detector(EvaViT(embed_dim=16, num_heads=1))
    lr = rates(model, layer_decay=0.9, custom_keys=dict(img_backbone=dict(lr_mult=0.25)))
    assert lr['head.weight'] == 1
    for layer, name in ((0, 'pos_embed'), (0, 'patch_embed.proj.weight'), (1, 'blocks.0.attn.q_proj.bias'),
                        (24, 'blocks.23.mlp.fc2.weight')):
        assert lr[f'img_backbone.vit.{name}'] == pytest.approx(0.25 * 0.9 ** (25 - layer))


@pytest.mark.parametrize('name', TINY)
def test_layer_decay_of_timm_models(name):
    lr = rates(Detector(build(name)), layer_decay=0.5)
    values = sorted({rate for key, rate in lr.items() if key != 'head.weight' and key != 'head.bias'})
    assert lr['head.weight'] == 1 and values[-1] == 0.5
    assert values == [0.5 ** (i + 1) for i in reversed(range(len(values)))] and len(values) > TINY[name][3] - 1


def test_layer_decay_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match='Linear does not tell its layers'):
        rates(Detector(nn.Linear(1, 1)), layer_decay=0.9)
    with pytest.raises(ValueError, match='layer_decay, above 0 and at most 1, not None'):
        rates(Detector(nn.Linear(1, 1)))
