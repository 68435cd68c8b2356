"""Every shipped config made small enough for a step in a fraction of a second, through the config, and its batches."""
import copy
import functools
import re
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from model_factory import stream_sample
from torch import nn

from georope.registry import MODELS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SIZE = (64, 96)
CAMERAS = 2
WINDOW = 4  # frames, of which the shipped config of windows gives losses to the last two
DIMS = 128  # heads of 16 channels, or of 8 where there are sixteen


def _twin(path: Path) -> Path | None:
    """The ResNet-50 config of 24 epochs that it differs from in schedule, backbone and image size alone, if any."""
    name = re.sub(r'_(vov|eva02-l)-\d+x\d+_8xb[12]-', '_r50_8xb2-', re.sub('(-428q)?-[69]0e', '-24e', path.name))
    return None if name == path.name or 'classic' in name else path.with_name(name)


_ALL = [path for path in sorted(CONFIGS.rglob('*.py')) if '_base_' not in path.parts]
TWINS = {path: _twin(path) for path in _ALL if _twin(path)}  # test_vovnet.py tests the backbone by itself
PATHS = [path for path in _ALL if path not in TWINS]


@functools.cache
def shrink(path: Path) -> dict:
    """The model of a config with a ResNet-18 of few channels, two decoder layers and few queries; all else stays."""
    model = Config.fromfile(path).model
    backbone, neck, head = model.img_backbone, model.img_neck, model.pts_bbox_head
    if backbone.type != 'mmdet.ResNet':
        model.img_backbone = backbone = Config.fromfile(CONFIGS / '_base_/models/petr_r50.py').model.img_backbone
        model.data_preprocessor = Config.fromfile(CONFIGS / '_base_/models/petr_r50.py').model.data_preprocessor
    backbone.update(depth=18, base_channels=8, init_cfg=None)
    neck.update(in_channels=[32, 64], out_channels=DIMS, num_outs=2)
    head.update(in_channels=DIMS)
    if 'decoder' in head:
        head.update(embed_dims=DIMS, num_query=16)
        head.decoder.update(num_layers=2, feedforward_channels=64)
    if isinstance(head.get('encoding', {}).get('reference_focal'), float):
        del head.encoding.reference_focal  # goes with the image size
    if 'token_encoder' in head:
        head.token_encoder.update(feedforward_channels=64)
    if 'memory_len' in head:
        head.update(num_query=12, memory_len=16, topk_proposals=8, num_propagated=4)
    if head.get('denoising'):
        head.denoising.update(groups=3)
    if 'img_roi_head' in model:
        model.img_roi_head.update(in_channels=DIMS, embed_dims=32)
    return model.to_dict()


def build(path: Path, *, dropout: float | None = None, **parts) -> nn.Module:
    """A small model in training mode. Its weights are not special: as they start, many are 0, so that depths, motion
    and calibration would not count.

    ``dropout`` is the decoder's, the config's if None; ``parts`` override other parts of the model's config.
    """
    init_default_scope('mmdet3d')
    config = copy.deepcopy(shrink(path))
    for part, options in parts.items():
        config[part].update(options)
    if dropout is not None and 'decoder' in config['pts_bbox_head']:
        config['pts_bbox_head']['decoder']['dropout'] = dropout
    torch.manual_seed(0)
    model = MODELS.build(config)
    model.init_weights()
    with torch.no_grad():
        for parameter in model.pts_bbox_head.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1 if parameter.shape[-1] == 1 else 0.5 / parameter.shape[-1] ** 0.5)
            elif parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


def batch(model: nn.Module, number: int = 0, counts=(9, 6), **options) -> dict:
    """What the loader gives for frame ``number``: two samples with so many objects; of windows for the last frames."""
    if not windowed(model):
        return _frames(number, counts, options)
    frames = [_frames(number + i, counts, options) for i in range(WINDOW)]
    samples = []
    for own in zip(*(frame['data_samples'] for frame in frames)):
        samples.append(own[-1].clone())
        samples[-1].frames = list(own)
    images = [torch.stack(own) for own in zip(*(frame['inputs']['img'] for frame in frames))]
    return dict(inputs=dict(img=images), data_samples=samples)


def windowed(model: nn.Module) -> bool:
    """Whether it is trained on windows of frames."""
    return getattr(model, 'num_frame_losses', 1) > 1


def _frames(number: int, counts, options: dict) -> dict:
    seeds = [10 * number + i for i in range(len(counts))]
    images = [np.random.RandomState(seed).randint(0, 255, (CAMERAS, 3, *SIZE), dtype=np.uint8) for seed in seeds]
    return dict(
        inputs=dict(img=[torch.from_numpy(image) for image in images]),
        data_samples=[stream_sample(f'scene{i}', number, count, seed, **options)
                      for i, (seed, count) in enumerate(zip(seeds, counts))])


def losses(model: nn.Module, data: dict) -> dict[str, torch.Tensor]:
    """Of a batch, as a training step computes them; random draws are those of seed 1."""
    torch.manual_seed(1)
    return model(**model.data_preprocessor(copy.deepcopy(data), True), mode='loss')


def total(losses: dict[str, torch.Tensor]) -> torch.Tensor:
    return sum(loss for name, loss in losses.items() if 'loss' in name)
