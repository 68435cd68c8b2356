"""Every shipped config made small enough for a step in a fraction of a second, through the config, and its batches."""
import copy
import json
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from model_factory import stream_sample
from torch import nn

from georope.models.embeddings import MLN
from georope.registry import MODELS
from georope.rope.supports import PredictedDepth

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SIZE = (64, 96)
CAMERAS = 2
WINDOW = 4  # frames, of which the shipped config of windows gives losses to the last two
DIMS = 128  # heads of 16 channels, or of 8 where there are sixteen


def shrink(path: Path) -> dict:
    """The model of a config with a small backbone, two decoder layers and few queries; all else stays."""
    model = Config.fromfile(path).model
    backbone, neck, head = model.img_backbone, model.img_neck, model.pts_bbox_head
    if backbone.type == 'mmdet.ResNet':
        backbone.update(depth=18, base_channels=8)
        neck.update(in_channels=[32, 64])
    else:
        backbone.update(spec='V-19-eSE')
    backbone.update(init_cfg=None)
    neck.update(out_channels=DIMS)
    head.update(in_channels=DIMS)
    if 'decoder' in head:
        head.update(embed_dims=DIMS, num_query=16)
        head.decoder.update(num_layers=2, feedforward_channels=64)
    if 'memory_len' in head:
        head.update(num_query=12, memory_len=16, topk_proposals=8, num_propagated=4)
    if head.get('denoising'):
        head.denoising.update(groups=3)
    if 'img_roi_head' in model:
        model.img_roi_head.update(in_channels=DIMS, embed_dims=32)
    return model.to_dict()


def different(paths) -> dict[str, dict]:
    """Names of configs to their small models; those that have become one model stand for each other."""
    models = {}
    for path in paths:
        model = shrink(path)
        models.setdefault(json.dumps(model, sort_keys=True, default=str), (path.stem, model))
    return dict(models.values())


MODEL_CONFIGS = different(path for path in sorted(CONFIGS.rglob('*.py')) if '_base_' not in path.parts)


def build(name: str, **head) -> nn.Module:
    """A model in training mode whose weights are not special: an untrained one predicts no depth and no motion yet.

    ``head`` overrides what the config says of the 3D head.
    """
    init_default_scope('mmdet3d')
    config = copy.deepcopy(MODEL_CONFIGS[name])
    config['pts_bbox_head'].update(head)
    torch.manual_seed(0)
    model = MODELS.build(config)
    model.init_weights()
    with torch.no_grad():
        for parameter in model.pts_bbox_head.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        for module in model.modules():
            if isinstance(module, MLN):
                nn.init.normal_(module.gamma.weight, std=0.2)
                nn.init.normal_(module.beta.weight, std=0.2)
            elif isinstance(module, PredictedDepth):
                nn.init.normal_(module.weight, std=0.5 / DIMS ** 0.5)
    return model.train()


def batch(name: str, number: int = 0, counts=(3, 2), **options) -> dict:
    """What the loader gives for frame ``number``: two samples with so many objects; of windows for the last frames."""
    if MODEL_CONFIGS[name]['data_preprocessor']['type'] != 'georope.FramePreprocessor':
        return _frames(number, counts, options)
    frames = [_frames(number + i, counts, options) for i in range(WINDOW)]
    samples = []
    for own in zip(*(frame['data_samples'] for frame in frames)):
        samples.append(own[-1].clone())
        samples[-1].frames = list(own)
    images = [torch.stack(own) for own in zip(*(frame['inputs']['img'] for frame in frames))]
    return dict(inputs=dict(img=images), data_samples=samples)


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
