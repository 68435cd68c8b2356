"""The toy StreamPETR made tiny, on four scenes of 4, 1, 3 and 3 frames, for tests of streams through the tools."""
import json
import os
from pathlib import Path
from unittest import mock

import tiny_model  # noqa: F401, registers InterruptHook
from launching import TOOLS
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from georope.datasets.converter import create_infos
from georope.toy import make_toy_nuscenes

LENGTHS = (4, 1, 3, 3)
INDICES = [4 * scene + i for scene, length in enumerate(LENGTHS) for i in range(length)]
BY_ITERATION = '''
_base_ = 'epochs.json'
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=12)
param_scheduler = None
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=6))
log_processor = dict(by_epoch=False)
train_dataloader = dict(num_workers=0, persistent_workers=False)
'''


def write_configs(folder: Path) -> None:
    """epochs.json, two slots for two epochs of 6 batches, and iterations.py, on a new toy set.

    The second frame of each scene shows no object.
    """
    root = make_toy_nuscenes(folder / 'toy', scenes=(4, 0), samples_per_scene=4, image_size=(96, 160), num_cameras=2,
                             edge_cases=('empty_frame', ), progress=False)
    create_infos(str(root), 'v1.0-mini')
    with mock.patch.dict(os.environ, NUSCENES_ROOT=str(root)):
        cfg = Config.fromfile(TOOLS.parent / 'configs/toy/streampetr_toy.py')
    cfg.merge_from_dict(dict(
        model=dict(
            img_backbone=dict(norm_eval=True),  # statistics of a batch are not those of its halves
            img_roi_head=dict(train_ratio=0.5, infer_ratio=0.75),
            pts_bbox_head=dict(num_query=12, memory_len=18, topk_proposals=6, num_propagated=6,
                               decoder=dict(num_layers=2, feedforward_channels=64, dropout=0.1))),
        train_dataloader=dict(batch_size=2, batch_sampler=dict(seq_split_num=1), dataset=dict(indices=INDICES)),
        test_dataloader=dict(num_workers=0, persistent_workers=False,
                             dataset=dict(indices=INDICES, ann_file='nuscenes_infos_train.pkl')),
        val_cfg=None, val_dataloader=None, val_evaluator=None,
        test_evaluator=dict(ann_file=f'{root}/nuscenes_infos_train.pkl', format_only=True, tracking=None),
        train_cfg=dict(max_epochs=2),
        load_from=None,
        randomness=dict(seed=3),
        default_hooks=dict(logger=dict(interval=100)),
        custom_hooks=[dict(type='InterruptHook', iteration=None, kill=True), dict(type='RecordHook')]))
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        for step in loader.dataset.pipeline:
            if step.type == 'georope.ImageAug':
                step.update(final_dim=(64, 128), resize_lim=(0.8, 1.0))
    cfg.dump(folder / 'epochs.json')
    (folder / 'iterations.py').write_text(BY_ITERATION)


@HOOKS.register_module()
class NaNHook(Hook):
    """Makes the weights NaN before a batch of a test: what a broken chip or an overflow does."""

    def __init__(self, batch: int, **kwargs) -> None:
        self.batch = batch

    def before_test_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == self.batch:
            runner.model.pts_bbox_head.reference_points.weight.data.fill_(float('nan'))


@HOOKS.register_module()
class RecordHook(Hook):
    """Appends tokens and losses of each training step of each rank to files in the work dir."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        entry = dict(tokens=[sample.token for sample in data_batch['data_samples']],
                     losses={name: value.item() for name, value in outputs.items()})
        with open(Path(runner.work_dir) / f'steps{runner.rank}.jsonl', 'a') as file:
            file.write(json.dumps(entry) + '\n')


def steps(work_dir: Path, rank: int = 0) -> tuple[list, list]:
    """What RecordHook wrote: the tokens and the losses of all steps."""
    entries = [json.loads(line) for line in (work_dir / f'steps{rank}.jsonl').read_text().splitlines()]
    return [entry['tokens'] for entry in entries], [entry['losses'] for entry in entries]
