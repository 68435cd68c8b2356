"""VoVNet: names and numbers of the released backbone."""
import pytest
import torch
from model_factory import seeded

from georope.registry import MODELS


def build(spec='V-19-eSE', **options):
    return MODELS.build(dict(type='georope.VoVNet', spec=spec, **options))


def test_golden_numbers():
    """Means and deviations that VoVNetCP of mmdet3d's projects/PETR (fe25f7a) gives with the same seeded weights."""
    model = build(out_features=('stage2', 'stage4', 'stage5')).eval()
    for name, tensor in model.state_dict().items():
        if name.endswith('num_batches_tracked'):
            continue
        value = seeded(name, tensor.shape, 'normal*1')
        if tensor.dim() == 4:
            value *= (2 / tensor[0].numel()) ** 0.5
        elif name.endswith('running_var'):
            value = value.abs() * 0.2 + 0.9
        else:
            value = 0.1 * value + name.endswith('weight')
        tensor.copy_(value)
    with torch.no_grad():
        outputs = model(seeded('vovnet.img', (2, 3, 72, 100), 'normal*1'))
    assert [tuple(x.shape) for x in outputs] == [(2, 256, 18, 25), (2, 768, 4, 6), (2, 1024, 2, 3)]
    for out, mean, std in zip(outputs, (0.270283, 0.139166, 0.088111), (0.441045, 0.213643, 0.123404)):
        assert out.mean().item() == pytest.approx(mean, rel=1e-4) and out.std().item() == pytest.approx(std, rel=1e-4)
    assert outputs[1][0, 2, 0, 0].item() == pytest.approx(0.583811, rel=1e-4)


def test_names_of_the_released_v2_99():
    """The FCOS3D and DD3D weights: 626 tensors with batch norm counters."""
    with torch.device('meta'):
        shapes = {name: tuple(value.shape) for name, value in build('V-99-eSE').state_dict().items()}
    assert len(shapes) == 626
    for name, shape in {
            'stem.stem_1/conv.weight': (64, 3, 3, 3), 'stem.stem_3/norm.running_mean': (128, ),
            'stage2.OSA2_1.layers.0.OSA2_1_0/conv.weight': (128, 128, 3, 3),
            'stage3.OSA3_3.layers.4.OSA3_3_4/norm.weight': (160, ),
            'stage4.OSA4_9.concat.OSA4_9_concat/conv.weight': (768, 768 + 5 * 192, 1, 1),
            'stage5.OSA5_3.ese.fc.bias': (1024, )}.items():
        assert shapes[name] == shape


@pytest.mark.parametrize('norm_eval', [True, False])
def test_training(norm_eval):
    model = build(frozen_stages=1, norm_eval=norm_eval).train()
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert {name.partition('.')[0] for name in frozen} == {'stem', 'stage2'}
    training = {name.split('.')[0]: module.training for name, module in model.named_modules() if name.endswith('/norm')}
    assert training == {'stem': False, 'stage2': False, **dict.fromkeys(('stage3', 'stage4', 'stage5'), not norm_eval)}


def test_recomputing_changes_no_gradient():
    gradients = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model = build(with_cp=with_cp).train()
        sum(x.square().mean() for x in model(torch.ones(1, 3, 64, 64))).backward()
        gradients.append(model.stem[0].weight.grad)
    torch.testing.assert_close(*gradients)


def test_half_precision():
    """Outputs and gradients under autocast against float32's: two steps of the type (measured 0.76 of one) and
    cosines as in test_amp.py (measured .99998); every parameter has a gradient."""
    results, model = [], build(with_cp=True).train()
    images = torch.randn(1, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.zero_grad()
        with torch.autocast('cpu', dtype, enabled=dtype is not torch.float32):
            outputs = [x.float() for x in model(images)]
        (2 ** 10 * sum(x.square().mean() for x in outputs)).backward()
        results.append((torch.cat([x.flatten() for x in outputs]), torch.cat([p.grad.flatten() for p in
                                                                             model.parameters()])))
    exact, gradient = results[0]
    for dtype, (half, of_half), alike in zip((torch.bfloat16, torch.float16), results[1:], (0.98, 0.995)):
        assert 0 < (half - exact).norm() / exact.norm() < 2 * torch.finfo(dtype).eps
        assert torch.cosine_similarity(of_half, gradient, dim=0) > alike


@pytest.mark.parametrize('options', [dict(spec='V-98-eSE'), dict(out_features=('stage6', ))])
def test_unknown_names(options):
    with pytest.raises(ValueError, match='must be one of'):
        build(**options)
