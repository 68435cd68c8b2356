"""VoVNetV2: one-shot aggregation with effective squeeze-and-excitation (arXiv 1904.09730, 1911.06667).

Parameters have the names of the released weights (FCOS3D, DD3D), slashes included: ``stem.stem_1/conv.weight``.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from georope.registry import MODELS

STAGES = ('stage2', 'stage3', 'stage4', 'stage5')
STEM_CHANNELS = (64, 64, 128)
INNER_CHANNELS = (128, 160, 192, 224)
OUT_CHANNELS = (256, 512, 768, 1024)
# convolutions per block, blocks per stage
SPECS = {
    'V-19-eSE': (3, (1, 1, 1, 1)),
    'V-39-eSE': (5, (1, 1, 2, 2)),
    'V-57-eSE': (5, (1, 1, 4, 3)),
    'V-99-eSE': (5, (1, 3, 9, 3)),
}


@MODELS.register_module()
class VoVNet(BaseModule):
    """VoVNetV2 without its classifier.

    Args:
        spec: a key of ``SPECS``.
        out_features: the stages returned; 'stage2' has stride 4, each further one twice that.
        frozen_stages: -1 trains everything, 0 freezes the stem, i also the first i stages.
        norm_eval: keep the batch norms' statistics in training.
        with_cp: recompute the blocks in the backward pass instead of keeping their activations.
    """

    def __init__(self, spec: str, out_features: Sequence[str] = ('stage4', 'stage5'), frozen_stages: int = -1,
                 norm_eval: bool = True, with_cp: bool = False, init_cfg: dict | list | None = None) -> None:
        super().__init__(init_cfg)
        if spec not in SPECS or not set(out_features) <= set(STAGES):
            raise ValueError(f'VoVNet: spec={spec!r} must be one of {list(SPECS)}, and out_features='
                             f'{list(out_features)} some of {list(STAGES)}')
        self.out_features = tuple(out_features)
        self.norm_eval = norm_eval
        layers, blocks = SPECS[spec]
        inputs = (3, *STEM_CHANNELS)
        self.stem = nn.Sequential(OrderedDict(
            part for i, stride in enumerate((2, 1, 2))
            for part in _conv(f'stem_{i + 1}', inputs[i], STEM_CHANNELS[i], 3, stride)))
        channels = STEM_CHANNELS[-1]
        for number, inner, out, count in zip(range(2, 6), INNER_CHANNELS, OUT_CHANNELS, blocks):
            stage = nn.Sequential()
            if number > 2:
                stage.add_module('Pooling', nn.MaxPool2d(3, stride=2, ceil_mode=True))
            for i in range(count):
                name = f'OSA{number}_{i + 1}'
                stage.add_module(name, _Block(name, channels, inner, out, layers, i > 0, with_cp))
                channels = out
            self.add_module(f'stage{number}', stage)
        self.frozen = [getattr(self, name) for name in ('stem', *STAGES)[:frozen_stages + 1]]
        for module in self.frozen:
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (n, 3, h, w) -> the maps of ``out_features``, finest first."""
        x = self.stem(x)
        outputs = []
        for name in STAGES:
            x = getattr(self, name)(x)
            if name in self.out_features:
                outputs.append(x)
        return tuple(outputs)

    def train(self, mode: bool = True) -> VoVNet:
        super().train(mode)
        for module in self.frozen:
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


class _Block(nn.Module):
    """One-shot aggregation: 3x3 convolutions in a row, all their outputs concatenated, mixed and gated per channel."""

    def __init__(self, name: str, channels: int, inner: int, out: int, layers: int, residual: bool,
                 with_cp: bool) -> None:
        super().__init__()
        self.residual, self.with_cp = residual, with_cp
        self.layers = nn.ModuleList(
            nn.Sequential(OrderedDict(_conv(f'{name}_{i}', inner if i else channels, inner, 3))) for i in range(layers))
        self.concat = nn.Sequential(OrderedDict(_conv(f'{name}_concat', channels + layers * inner, out, 1)))
        self.ese = _Gate(out)

    def forward(self, x: Tensor) -> Tensor:
        if self.with_cp and self.training and torch.is_grad_enabled():
            return checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        out = self.ese(self.concat(torch.cat(outputs, dim=1)))
        return out + x if self.residual else out


class _Gate(nn.Module):
    """Effective squeeze-and-excitation: one linear map of the channels' means, hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.fc(x.mean((2, 3), keepdim=True)))


def _conv(name: str, channels: int, out: int, kernel: int, stride: int = 1) -> list[tuple[str, nn.Module]]:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return [(f'{name}/conv', convolution), (f'{name}/norm', nn.BatchNorm2d(out)),
            (f'{name}/relu', nn.ReLU(inplace=True))]
