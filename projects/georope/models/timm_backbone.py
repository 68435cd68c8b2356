"""Any backbone of timm, by its name there, and timm itself without torchvision."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from georope.registry import MODELS


@MODELS.register_module()
class TimmBackbone(BaseModule):
    """The feature maps of a timm model. Its parameters keep timm's names, behind ``features.model.``.

    Args:
        name: of timm, e.g. 'convnext_tiny', 'swin_tiny_patch4_window7_224', 'vit_small_patch14_dinov2'.
        out_indices: the maps returned: stages of a pyramid, blocks of a plain ViT; negative ones count from the end.
            Layers behind the last one are not built, so that every parameter is trained.
        frozen_stages: -1 trains everything, 0 freezes the stem (patch embedding), i also the first i stages, of a plain
            ViT blocks; frozen parts run in evaluation mode.
        norm_eval: keep the statistics of batch norms in training.
        with_cp: recompute blocks in the backward pass instead of keeping their activations.
        pretrained: True takes timm's weights (from the Hugging Face hub, kept in its cache), a path those in a file
            with timm's names or those of the authors. They are read when training starts, not for tests.
        options: of the timm model, e.g. ``drop_path_rate``; Swin and ViT want ``img_size=(height, width)`` of the
            padded images, ViT for any size ``dynamic_img_size=True``.

    Attributes:
        channels, strides: of the maps, for ``in_channels`` of the neck and ``stride`` of the heads.
    """

    def __init__(self, name: str, out_indices: Sequence[int] = (2, 3), frozen_stages: int = -1, norm_eval: bool = False,
                 with_cp: bool = False, pretrained: bool | str = False, init_cfg: dict | list | None = None,
                 **options) -> None:
        super().__init__(init_cfg)
        self.options = dict(options, model_name=name, features_only=True, feature_cls='getter',
                            out_indices=tuple(out_indices))
        self.pretrained = pretrained
        self.norm_eval = norm_eval
        timm = import_timm()
        if not timm.is_model(name):
            near = timm.list_models(f'*{name.partition("_")[0]}*')[:8]
            raise ValueError(f'TimmBackbone: timm {timm.__version__} has no model {name!r}'
                             + (f'; it has {", ".join(near)}, ...' if near else ''))
        self.features = timm.create_model(**self.options)
        self.channels = tuple(self.features.feature_info.channels())
        self.strides = tuple(self.features.feature_info.reduction())
        if with_cp:
            self.features.model.set_grad_checkpointing(True)
        self.frozen = freeze(self, [name for name, stage in self.layer_ids(stages=True).items()
                                    if stage <= frozen_stages])

    def init_weights(self) -> None:
        super().init_weights()
        if self.pretrained:
            overlay = {} if self.pretrained is True else dict(pretrained_cfg_overlay=dict(file=str(self.pretrained)))
            source = import_timm().create_model(**self.options, **overlay, pretrained=True)
            self.features.load_state_dict(source.state_dict())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (n, 3, h, w) -> maps (n, ``channels[i]``, h / ``strides[i]``, w / ``strides[i]``)."""
        return tuple(self.features(x))

    def train(self, mode: bool = True) -> TimmBackbone:
        super().train(mode)
        for module in self.modules() if self.norm_eval else ():
            if isinstance(module, _BatchNorm):
                module.eval()
        for module in self.frozen:
            module.eval()
        return self

    def layer_ids(self, stages: bool = False) -> dict[str, int]:
        """Parameter -> number of its layer, or of its stage, from 0, the stem; see ``LayerDecayConstructor``."""
        model, prefix = self.features.model, 'features.model.'
        if not hasattr(model, 'group_matcher'):
            raise ValueError(f'TimmBackbone: timm does not tell the layers of {self.options["model_name"]}: neither '
                             'frozen_stages nor a decay by layers is possible')
        ids = import_timm().models.group_parameters(model, model.group_matcher(coarse=stages), reverse=True)
        return {prefix + name: number if '.' in name else 0 for name, number in ids.items()}  # tokens are stem


def freeze(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Freezes the parameters of these names.

    Returns:
        The parts of ``module`` all of whose parameters are frozen: they belong in evaluation mode.
    """
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    parts = [(part, list(part.parameters())) for part in module.modules()]
    return [part for part, own in parts if own and not any(parameter.requires_grad for parameter in own)]


class _WithoutTorchvision(MetaPathFinder, Loader):
    """Stands in for torchvision while timm is imported, which derives tables and classes from a few of its names."""

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition('.')[0] == 'torchvision' else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Names(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith('__'):
            raise AttributeError(name)
        return _Empty(name, (), {})


class _Empty(type):
    """A class without instances that has every name: an enumeration, say."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith('__'):
            raise AttributeError(name)
        return _Empty(name, (), {})


def import_timm() -> ModuleType:
    """timm. It imports torchvision for image transforms, data sets and frozen batch norms, which backbones do not use;
    where torchvision is not installed, nobody sees one afterwards either.

    Raises:
        RuntimeError: if timm is not installed.
    """
    if 'timm' not in sys.modules and importlib.util.find_spec('timm') is None:
        raise RuntimeError('timm is not installed, which TimmBackbone and EvaViT need: pip install -c requirements/'
                           'pins.txt --no-deps timm safetensors, and huggingface-hub for its weights')
    if 'timm' in sys.modules or importlib.util.find_spec('torchvision') is not None:
        return importlib.import_module('timm')
    finder = _WithoutTorchvision()
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module('timm')
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Names)]:
            del sys.modules[name]
