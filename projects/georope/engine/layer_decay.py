"""Learning rates that fall from the last layer of the backbone to its first."""
from __future__ import annotations

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from georope.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(DefaultOptimWrapperConstructor):
    """mmengine's, which also multiplies the rate of layer i of the backbone's n by ``layer_decay ** (n - i)``.

    Layer 0 are the embeddings; the last layer, n - 1, is multiplied once, all else (neck, heads) not at all. It needs a
    backbone that tells its layers: ``georope.EvaViT`` or ``georope.TimmBackbone``.

    Args:
        optim_wrapper_cfg: the optimizer wrapper's config.
        paramwise_cfg: ``layer_decay``, above 0 and at most 1, and what mmengine's takes: ``custom_keys=dict(
            img_backbone=dict(lr_mult=...))`` is multiplied too.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        paramwise_cfg = dict(paramwise_cfg or {})
        self.layer_decay = paramwise_cfg.pop('layer_decay', None)
        if self.layer_decay is None or not 0 < self.layer_decay <= 1:
            raise ValueError('LayerDecayConstructor needs optim_wrapper.paramwise_cfg.layer_decay, above 0 and at most '
                             f'1, not {self.layer_decay}')
        paramwise_cfg.setdefault('custom_keys', {})  # without any, mmengine would put all parameters into one group
        super().__init__(optim_wrapper_cfg, paramwise_cfg)

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        super().add_params(params, module, prefix, **kwargs)
        if prefix:
            return
        backbone = module.img_backbone
        if not hasattr(backbone, 'layer_ids'):
            raise ValueError(f'LayerDecayConstructor: {type(backbone).__name__} does not tell its layers; use '
                             'georope.EvaViT or georope.TimmBackbone, or paramwise_cfg.custom_keys without it')
        layers, own = backbone.layer_ids(), dict(backbone.named_parameters())
        last = max(layers.values())
        scales = {own[name]: self.layer_decay ** (last + 1 - layer) for name, layer in layers.items()}
        for group in params:
            parameter, = group['params']
            group['lr'] = group.get('lr', self.base_lr) * scales.get(parameter, 1)
