"""CPFPN: a feature pyramid without the output convolutions that PETR does not use (StreamPETR's neck)."""
from __future__ import annotations

from collections.abc import Sequence

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from georope.registry import MODELS


@MODELS.register_module()
class CPFPN(BaseModule):
    """Top-down feature pyramid; only the finest level passes a 3x3 convolution, the others are what they collected.

    Args:
        in_channels: channels of the backbone's levels, finest first.
        out_channels: channels of every output.
        num_outs: levels returned, at most as many as come in.
    """

    def __init__(self, in_channels: Sequence[int], out_channels: int, num_outs: int,
                 init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg or dict(type='Xavier', layer='Conv2d', distribution='uniform'))
        if not 1 <= num_outs <= len(in_channels):
            raise ValueError(f'CPFPN: num_outs={num_outs} is not between 1 and the {len(in_channels)} levels of '
                             f'in_channels={list(in_channels)}')
        self.num_outs = num_outs
        self.lateral_convs = nn.ModuleList(ConvModule(channels, out_channels, 1, act_cfg=None)
                                           for channels in in_channels)
        self.fpn_convs = nn.ModuleList((ConvModule(out_channels, out_channels, 3, padding=1, act_cfg=None), ))

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps (n, in_channels[i], h_i, w_i), finest first -> ``num_outs`` maps (n, out_channels, h_i, w_i)."""
        levels = [conv(x) for conv, x in zip(self.lateral_convs, inputs)]
        for i in range(len(levels) - 1, 0, -1):
            levels[i - 1] = levels[i - 1] + F.interpolate(levels[i], size=levels[i - 1].shape[-2:], mode='nearest')
        levels[0] = self.fpn_convs[0](levels[0])
        return tuple(levels[:self.num_outs])
