"""Every encoding on the device against float64 on the CPU: coefficients, attention and its gradients."""
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from model_factory import cameras

from georope.registry import MODELS
from georope.rope import Rays, RotaryAttention, Rotation
from georope.rope.encodings import PredictedRoPE

ENCODINGS = {path.stem: cfg.get('encoding') or cfg.self_encoding
             for path in sorted(Path(__file__).parents[2].glob('configs/_base_/encodings/*.py'))
             for cfg in [Config.fromfile(path)]}
HEADS, HEAD_DIM, QUERIES, CAMERAS, SIZE, STRIDE = 8, 32, 100, 3, (128, 352), 16
DIMS = HEADS * HEAD_DIM
# Greatest ||x - reference|| / ||reference|| of the output and of a gradient. Measured on a CPU, TF32 by rounding
# what goes into products of matrices: float32 2e-5, TF32 1e-3 and 9e-3, float16 6e-4 and 9e-3, bfloat16 5e-3 and 7e-2.
BOUNDS = {'highest': (1e-4, 1e-4), 'high': (5e-3, 3e-2), torch.float16: (4e-3, 3e-2), torch.bfloat16: (3e-2, 2e-1)}


class Pass:
    """One attention with an encoding, forward and backward: ``coefficients`` and ``values``, dicts of float64 tensors
    on the CPU. The numbers that go in are the same whatever device and dtype. The first ``padded`` keys are hidden."""

    def __init__(self, name, device, dtype, autocast=None, padded=0):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        encoding = MODELS.build(ENCODINGS[name], default_args=dict(num_heads=HEADS, head_dim=HEAD_DIM, num_layers=1))
        attention = RotaryAttention(DIMS, HEADS)
        with torch.no_grad():  # predictors start at zero, where features would not count
            for parameter in (*encoding.parameters(), *attention.parameters()):
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        encoding.to(device, dtype), attention.to(device, dtype)
        lidar2img = torch.from_numpy(cameras(CAMERAS, size=SIZE)[0])[None].to(device)
        rows, columns = (length // STRIDE for length in SIZE)
        rays = Rays.from_lidar2img(lidar2img, (rows, columns), STRIDE).to(torch.float32).to(dtype)
        leaves = dict(features=random(1, CAMERAS * rows * columns, DIMS), query=random(1, QUERIES, DIMS),
                      points=20 * random(1, QUERIES, 3))
        for leaf in leaves.values():
            leaf.requires_grad_()
        features = leaves['features']

        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            keys = encoding.rotate_keys(encoding.prepare(rays), features)
            queries = encoding.rotate_queries(leaves['points'])
            position = encoding.embed_keys(rays)
            padding = torch.arange(features.shape[1], device=device)[None] < padded if padded else None
            out = attention(leaves['query'], features if position is None else features + position, features, queries,
                            keys, key_padding_mask=padding)
        (out * random(*out.shape)).sum().backward()

        self.predicts = isinstance(encoding, PredictedRoPE)
        self.coefficients = {}
        for side, rotation in (('queries', queries), ('keys', keys)):
            rotation = getattr(rotation, 'rotation', rotation)  # of half of the channels
            if isinstance(rotation, Rotation):
                self.coefficients |= {f'{side}.cos': rotation.cos, f'{side}.sin': rotation.sin}
        self.values = dict(out=out) | {f'gradient of {key}': leaf.grad for key, leaf in leaves.items()} | {
            f'gradient of {key}': parameter.grad
            for module in (encoding, attention) for key, parameter in module.named_parameters()}
        self.dtypes = {key: x.dtype for key, x in (self.coefficients | dict(out=out)).items()}
        self.coefficients, self.values = ({key: x.detach().cpu().double() for key, x in group.items() if x is not None}
                                          for group in (self.coefficients, self.values))


def errors(actual, expected):
    """Relative to the norm, by name; NaN where anything is not finite. A tensor that is next to nothing beside the
    others, such as the gradient of what all keys share, counts as a thousandth of the largest."""
    assert actual.keys() == expected.keys()
    least = 1e-3 * max((x.norm() for x in expected.values()), default=0)
    return {key: ((actual[key] - x).norm() / x.norm().clamp(min=least)).item() for key, x in expected.items()}


@cache
def reference(name):
    """In float64 on the CPU, and the errors of the coefficients in float32 there."""
    exact, single = (Pass(name, torch.device('cpu'), dtype) for dtype in (torch.float64, torch.float32))
    return exact, errors(single.coefficients, exact.coefficients)


def check(run, exact, bounds):
    for key, error in errors(run.values, exact.values).items():
        assert error <= bounds[key != 'out'], (key, error)


@pytest.mark.parametrize('name', ENCODINGS)
def test_float32_on_the_device(name, device, precision):
    """Coefficients as exact as on the CPU whatever TF32 does, unless they are predicted from features: a predictor is a
    product of matrices, and an error of its depth turns by up to 2 rad per metre."""
    exact, cpu = reference(name)
    run = Pass(name, device, torch.float32)
    assert set(run.dtypes.values()) == {torch.float32}
    for key, error in errors(run.coefficients, exact.coefficients).items():
        predicted = run.predicts and key.startswith('keys')
        bound = 1e-2 if predicted and precision == 'high' else 4 * cpu[key] + 1e-6
        assert error <= bound, (key, error, bound)
    check(run, exact, BOUNDS[precision])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=['float16', 'bfloat16'])
@pytest.mark.parametrize('name', ENCODINGS)
def test_half_precision_reaches_attention_and_not_the_coefficients(name, dtype, device):
    exact, cpu = reference(name)
    run = Pass(name, device, torch.float32, autocast=dtype)
    assert run.dtypes.pop('out') == dtype and set(run.dtypes.values()) <= {torch.float32}
    for key, error in errors(run.coefficients, exact.coefficients).items():
        assert error <= 4 * cpu[key] + 1e-6, (key, error)
    check(run, exact, BOUNDS[dtype])
