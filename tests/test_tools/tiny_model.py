"""A model of four numbers, and its config, for the tests of the tools."""
import os
import signal
import time
from pathlib import Path

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from torch import nn
from torch.utils.data import Dataset

ROOT = Path(__file__).resolve().parents[2]

STOCK_CONFIG = '''
custom_imports = dict(imports=['georope', 'tiny_model'], allow_failed_imports=False)
model = dict(type='mmengine.TinyModel', encoding=dict(type='georope.URoPE', anchors=[5, 45]))
loader = dict(batch_size=2, num_workers=0, dataset=dict(type='mmengine.TinyData'))
train_dataloader = dict(sampler=dict(type='DefaultSampler', shuffle=True), **loader)
test_dataloader = dict(sampler=dict(type='DefaultSampler', shuffle=False), **loader)
val_dataloader = test_dataloader
val_evaluator = test_evaluator = dict(type='mmengine.TinyMetric', prefix='tiny')
val_cfg = test_cfg = dict()
train_cfg = dict(by_epoch=True, max_epochs=4, val_interval=2)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=0.1), clip_grad=dict(max_norm=35))
param_scheduler = [dict(type='LinearLR', start_factor=1 / 3, by_epoch=False, begin=0, end=8),
                   dict(type='CosineAnnealingLR', by_epoch=True, T_max=4, convert_to_iter_based=True)]
auto_scale_lr = dict(enable=False, base_batch_size=8)
default_hooks = dict(logger=dict(type='LoggerHook', interval=1))
log_processor = dict(window_size=1)
randomness = dict(seed=3)
custom_hooks = [dict(type='InterruptHook', iteration=None)]
'''
CONFIG = f"_base_ = ['{ROOT}/configs/_base_/default_runtime.py']\n{STOCK_CONFIG}"


@MODELS.register_module()
class TinyModel(BaseModel):
    """A linear layer; the encodings stand for position encodings without parameters."""

    def __init__(self, channels: int = 3, encoding: dict | None = None, self_encoding: dict | None = None,
                 layers: int = 0, frozen: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 1)
        self.img_backbone = TinyBackbone(channels, layers, frozen)

    def forward(self, inputs, targets, index, mode='tensor'):
        out = self.linear(self.img_backbone(torch.stack(inputs))).squeeze(1)
        if mode == 'loss':
            return {'loss': (out - torch.stack(targets)).square().mean()}
        return [{'index': i, 'out': o.item()} for i, o in zip(index, out)]


class TinyBackbone(nn.Sequential):
    """Linear layers, the first ``frozen`` of which are not trained; by default none, which changes nothing."""

    def __init__(self, channels: int, layers: int, frozen: int) -> None:
        super().__init__(*(nn.Linear(channels, channels) for _ in range(layers)))
        for layer in list(self)[:frozen]:
            layer.requires_grad_(False)

    def layer_ids(self) -> dict[str, int]:
        return {name: int(name.partition('.')[0]) for name, _ in self.named_parameters()}


@DATASETS.register_module()
class TinyData(Dataset):
    metainfo = {'classes': ('car',), 'version': 'tiny'}

    def __init__(self, size: int = 12, channels: int = 3) -> None:
        self.inputs = torch.randn(size, channels, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {'inputs': self.inputs[index], 'targets': self.inputs[index].sum(), 'index': index}


@METRICS.register_module()
class TinyMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        return {'count': len(results), 'sum': sum(r['out'] for r in results)}


@METRICS.register_module()
class SlowMetric(TinyMetric):
    """Lets the other processes wait in a collective, as metrics of mmengine do."""

    def compute_metrics(self, results):
        time.sleep(20)
        return super().compute_metrics(results)


@HOOKS.register_module()
class InterruptHook(Hook):
    """Ends training before the given iteration, if any: by Ctrl-C, or by kill -9."""

    def __init__(self, iteration: int | None, kill: bool = False) -> None:
        self.iteration, self.kill = iteration, kill

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.iteration:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt
