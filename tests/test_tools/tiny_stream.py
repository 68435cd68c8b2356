"""A model of four numbers with a memory per lane, on made-up scenes, for tests of streams through the tools."""
from collections import Counter

import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from tiny_model import CONFIG as TINY
from torch import nn
from torch.utils.data import Dataset

from georope.datasets.samplers import LaneIndex, draws_of

CONFIG = TINY.replace("'tiny_model'", "'tiny_stream'").replace('TinyModel', 'TinyStreamModel') + '''
train_dataloader = dict(batch_size=2, num_workers=1, persistent_workers=True,
                        dataset=dict(type='mmengine.TinyScenes', lengths=(4, 3, 5)),
                        sampler=dict(type='DefaultSampler', shuffle=True),
                        batch_sampler=dict(type='georope.StreamBatchSampler', seq_split_num=2))
train_cfg.pop('val_interval')
val_dataloader = val_cfg = val_evaluator = None
test_dataloader = dict(batch_size=2, num_workers=1, persistent_workers=True,
                       dataset=dict(type='mmengine.TinyScenes', lengths=(4, 3)),
                       sampler=dict(type='DefaultSampler', shuffle=False),
                       batch_sampler=dict(type='georope.SceneBatchSampler'))
'''
BY_ITERATION = '''
train_cfg = dict(type='IterBasedTrainLoop', max_iters=24)
param_scheduler = None
default_hooks.update(checkpoint=dict(by_epoch=False, interval=6))
log_processor.update(by_epoch=False)
train_dataloader.update(num_workers=0, persistent_workers=False)
'''


@DATASETS.register_module()
class TinyScenes(Dataset):
    metainfo = {'classes': ('car',), 'version': 'tiny'}
    loaded = Counter()

    def __init__(self, lengths) -> None:
        ends = np.cumsum(lengths).tolist()
        self._scenes = [list(range(end - length, end)) for end, length in zip(ends, lengths)]
        self.inputs = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(1))

    def scenes(self):
        return self._scenes

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.loaded['frames'] += 1
        prev_exists = all(index != scene[0] for scene in self._scenes)
        if not isinstance(index, LaneIndex):
            return dict(inputs=self.inputs[index], index=index, prev_exists=prev_exists)
        with draws_of(index):
            return dict(inputs=self.inputs[index] + torch.tensor(np.random.rand(3)).float(), index=int(index),
                        prev_exists=prev_exists and not index.starts)


@MODELS.register_module()
class TinyStreamModel(BaseModel):
    """A linear layer on frame and memory, with noise as denoising and dropout have it."""

    def __init__(self, encoding=None, noise: float = 0.1) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.noise, self.memory = noise, None

    def forward(self, inputs, index, prev_exists, mode='tensor'):
        frames = torch.stack(inputs)
        if any(prev_exists):
            frames = frames + torch.where(torch.tensor(prev_exists)[:, None], self.memory, 0.)
        self.memory = frames / 2
        out = self.linear(frames + self.training * self.noise * torch.rand_like(frames)).squeeze(1)
        if mode == 'predict':
            return [dict(index=i, out=o.item()) for i, o in zip(index, out)]
        places = sum(place * 100. ** lane for lane, place in enumerate(index))
        return dict(loss=(out - frames.sum(1)).square().mean(), places=torch.tensor(places))
