"""Hooks of the tools: plain checkpoints, weights that fit, streams, and one line that says what is trained."""
from __future__ import annotations

import itertools
import logging
import random

import numpy as np
import torch
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop

from georope.datasets import CameraWindowDataset, StreamBatchSampler
from georope.errors import InputError
from georope.messages import some
from georope.registry import HOOKS

from .checkpoint import MIN_SHARE
from .same_encodings import other_encodings


def _plain(value):
    """Python numbers for numpy's and dicts for mmengine's, at any depth."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


@HOOKS.register_module()
class PlainCheckpointHook(Hook):
    """Saves plain data only, so that every torch loads the file with ``weights_only=True``.

    What is left out is the history of logged values. It only smooths the log, which starts its windows anew on resume;
    the whole history is in ``vis_data/scalars.json`` of the run.
    """
    priority = 'LOWEST'

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        hub = checkpoint['message_hub']
        dropped = hub['log_scalars']
        checkpoint['message_hub'] = dict(
            log_scalars={}, runtime_info=_plain(hub['runtime_info']),
            resumed_keys={key: kept for key, kept in hub['resumed_keys'].items() if key not in dropped})
        checkpoint['meta'] = _plain(checkpoint['meta'])


class CheckWeightsHook(Hook):
    """Compares each loaded checkpoint with the model.

    Args:
        purpose: ``'test'`` and ``'resume'`` want every tensor and the encodings to be the same (see
            ``same_encodings``), ``'resume'`` the state of the optimizer too. ``'init'`` (``load_from`` in training)
            logs the share that fits of each part (backbone, neck, head); a checkpoint that does not fill half of any
            part is an error.
        accept: go on all the same with weights that differ or fill less; what does not fit is logged. A checkpoint of
            which nothing fits is an error even so.
    """

    def __init__(self, purpose: str, accept: bool = False) -> None:
        self.purpose = purpose
        self.accept = accept

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        tensors = checkpoint.get('state_dict', checkpoint)
        for name, module in model.named_modules():
            if hasattr(module, 'check_checkpoint'):  # says more than that a tensor is missing
                module.check_checkpoint({key.removeprefix('module.'): x for key, x in tensors.items()}, f'{name}.')
        expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        found = {key.removeprefix('module.'): tuple(value.shape) for key, value in tensors.items()
                 if hasattr(value, 'shape')}
        fitting = [key for key, shape in expected.items() if found.get(key) == shape]
        if 'pts_bbox_head.code_weights' in found:
            raise RuntimeError('the checkpoint is a release of PETR, StreamPETR or DETR3D with its own names and box '
                               'code: convert it first with tools/convert_checkpoint.py')
        if self.purpose == 'init':
            shares = {part: _share(part, expected, fitting) for part in {key.partition('.')[0] for key in expected}}
            told = (f'{len(fitting)} of the {len(expected)} tensors of this model come from the checkpoint, '
                    f'{len(found) - len(fitting)} of its {len(found)} are not used; '
                    + ', '.join(f'{part} {share:.0%}' for part, share in sorted(shares.items())))
            if max(shares.values()) < MIN_SHARE:
                self._refuse(f'load_from: only {told}', 'for the weights of a backbone alone: model.img_backbone.'
                             'init_cfg=dict(type="Pretrained", checkpoint=PATH, prefix=PREFIX)', bool(fitting))
            runner.logger.info(f'load_from: {told}')
            return
        if self.purpose == 'resume' and 'optimizer' not in checkpoint:
            raise RuntimeError('resume: the checkpoint holds weights without the state of the optimizer; to start a '
                               'new training from them: --cfg-options load_from=PATH')
        differences = [
            _some('missing in the checkpoint', [key for key in expected if key not in found
                                                and not key.endswith('num_batches_tracked')]),
            _some('not in this model', [key for key in found if key not in expected]),
            _some('of another shape', [key for key in expected if key in found and found[key] != expected[key]]),
            *other_encodings(checkpoint.get('meta', {}).get('cfg', ''), runner.cfg.pretty_text, model)]
        if any(differences):
            self._refuse('the checkpoint belongs to another model than this config: '
                         + '; '.join(filter(None, differences)), 'use the config that it was trained with',
                         bool(fitting))

    def _refuse(self, told: str, advice: str, anything: bool) -> None:
        """Raises; warns instead if differences are accepted and the checkpoint has anything for this model."""
        if not (self.accept and anything):
            way_out = ', or go on all the same: --accept-weights' if anything else ''
            raise RuntimeError(f'{told}; {advice}{way_out}')
        print_log(f'accepted: {told}', logger='current', level=logging.WARNING)


class CheckScheduleHook(Hook):
    """Refuses to resume a run whose schedule, or order of frames in streams, differs from the saved one.

    mmengine takes the saved state of each scheduler as it is. With another batch size, number of processes, number of
    epochs or iterations or learning rate it would belong to another run: the rate would fall too early, or never, or
    rise again. Streams (``StreamHook``) of another number of slots or sequences show the frames in another order.
    """
    MOVING = ('last_step', '_global_step', '_last_value', 'verbose')

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        meta, loader = checkpoint.get('meta', {}), runner.train_dataloader
        differences = []
        if isinstance(runner.train_loop, EpochBasedTrainLoop) and 'iter' in meta and 'epoch' in meta:
            first, per_epoch = meta['epoch'] * len(loader), len(loader)
            if not first <= meta['iter'] <= first + per_epoch:
                differences.append(f'{meta["epoch"]} epochs were {meta["iter"]} iterations, here they are {first} '
                                   '(other batch size, number of processes or data)')
        if isinstance(loader.batch_sampler, StreamBatchSampler):
            differences += _other_streams(runner, meta.get('streams'), _streams(loader.batch_sampler))
        differences += _other_length(runner, checkpoint)
        for i, (saved, current) in enumerate(zip(_schedulers(checkpoint.get('param_schedulers')),
                                                 _schedulers(runner.param_schedulers))):
            for key in sorted({*saved}.intersection(current).difference(self.MOVING)):
                if _plain(saved[key]) != _plain(current[key]):
                    differences.append(f'param_scheduler[{i}].{key} was {_few(saved[key])}, here it is '
                                       f'{_few(current[key])}')
        if differences:
            raise RuntimeError(f'--resume: the schedule is another than the saved one: {"; ".join(differences)}. '
                               'Resume with the settings of that run, or start a new one from its weights: load_from')


def _schedulers(schedulers: list | dict | None) -> list[dict]:
    """The states of a checkpoint's or a runner's schedulers, of whichever optimizer."""
    if isinstance(schedulers, dict):
        return [state for each in schedulers.values() for state in _schedulers(each)]
    return [x if isinstance(x, dict) else x.state_dict() for x in schedulers or ()]


def _streams(sampler: StreamBatchSampler) -> dict[str, int]:
    """What decides, together with seed and iteration, which frames the batches of a stream hold."""
    return dict(slots=sampler.num_slots, sequences=len(sampler.sequences))


def _other_streams(runner, saved: dict[str, int] | None, current: dict[str, int]) -> list[str]:
    if saved is None:
        runner.logger.warning('--resume: the checkpoint does not say how many slots its streams had, as older ones do '
                              f'not; here there are {current["slots"]} (batch_size x processes). If their number or '
                              'seq_split_num was another, the frames come in another order')
        return []
    saved = {'slots': saved.get('lanes'), **saved}  # the name in checkpoints of before
    return [f'the streams had {saved[key]} {key}, here they have {current[key]} ({hint})' for key, hint in (
        ('slots', 'batch_size x processes'), ('sequences', 'seq_split_num or data')) if saved[key] != current[key]]


def _other_length(runner, checkpoint: dict) -> list[str]:
    """A training that ended with its schedule and now would continue beyond its end or stop before it."""
    lengths = {(state.get('by_epoch', True), state[key]) for state in _schedulers(checkpoint.get('param_schedulers'))
               for key in ('end', 'T_max') if key in state}
    info = checkpoint.get('message_hub', {}).get('runtime_info', {})
    return [f'it ends with {key}={info[key]}, here training has {key}={getattr(runner, key)}'
            for by_epoch, key in ((True, 'max_epochs'), (False, 'max_iters'))
            if (by_epoch, info.get(key)) in lengths and info[key] != getattr(runner, key)]


def _few(value) -> str:
    """A number, or the different ones of a list (one per group of parameters)."""
    return ', '.join(f'{x:g}' for x in dict.fromkeys(value)) if isinstance(value, list) else str(value)


def _share(part: str, expected: dict, fitting: list[str]) -> float:
    """Share of a part's tensors that fit; the counters of batch norms do not count."""
    own = {key for key in expected if key.partition('.')[0] == part and not key.endswith('num_batches_tracked')}
    return len(own.intersection(fitting)) / max(len(own), 1)


def _some(what: str, keys: list[str]) -> str:
    return f'{len(keys)} tensors {what} ({some(keys, 3)})' if keys else ''


@HOOKS.register_module()
class CheckDataHook(Hook):
    """Compares the datasets with the model and the evaluator before the first step, not after the first epochs.

    Heads (``num_classes``) and every dataset (``metainfo['classes']``) must have the same number of classes; metrics
    with a method ``check`` look at their files.
    """

    def before_train(self, runner) -> None:
        self._check(runner, 'train')
        if runner.val_loop is not None:
            self.before_val(runner)

    def before_val(self, runner) -> None:
        self._check(runner, 'val')
        _check_metrics(runner.val_evaluator)

    def before_test(self, runner) -> None:
        self._check(runner, 'test')
        _check_metrics(runner.test_evaluator)

    def _check(self, runner, phase: str) -> None:
        loader = getattr(runner, f'{phase}_dataloader')
        classes = getattr(loader.dataset, 'metainfo', {}).get('classes')
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        for name in ('pts_bbox_head', 'img_roi_head'):
            number = getattr(getattr(model, name, None), 'num_classes', None)
            if None not in (number, classes) and number != len(classes):
                raise InputError(
                    f'{phase}_dataloader.dataset.metainfo.classes has {len(classes)} names ({some(list(classes), 3)}), '
                    f'model.{name}.num_classes is {number}: set model.{name}.num_classes={len(classes)}, or name '
                    f'{number} classes in metainfo of all datasets')


def _check_metrics(evaluator) -> None:
    for metric in evaluator.metrics:
        if hasattr(metric, 'check'):
            metric.check()


@HOOKS.register_module()
class StreamHook(Hook):
    """Training on streams (:class:`georope.datasets.StreamBatchSampler`) starts where the run is; else does nothing.

    Sampler and model then depend on (seed, iteration) alone: the loader starts at the iteration that a run was resumed
    at, and python's, numpy's and torch's generators are seeded with (seed, rank, iteration) before each iteration, so
    that dropout, denoising noise and masks are those of a run that was never stopped. Checkpoints hold the number of
    slots and sequences in ``meta['streams']``, for ``CheckScheduleHook``.
    """
    priority = 'VERY_HIGH'
    active = False

    def before_train(self, runner) -> None:
        sampler = runner.train_loop.dataloader.batch_sampler
        self.active = isinstance(sampler, StreamBatchSampler)
        if self.active:
            seed = torch.tensor(runner.seed)  # with diff_rank_seed, ranks have their own
            broadcast(seed)
            self.seed = sampler.seed = int(seed)
            runner.logger.info(f'streams: {len(sampler.sequences)} sequences in {sampler.num_slots} slots, '
                               f'{len(sampler)} iterations per epoch')
            longest = max(map(len, sampler.sequences))
            if len(sampler) < longest:
                runner.logger.warning(f'streams: an epoch is shorter than the longest sequence, {longest} frames, so '
                                      'that memory starts anew within it. Fewer slots (batch_size x ranks) or a higher '
                                      'seq_split_num avoid that.')
            if longest == 1 and not isinstance(runner.train_dataloader.dataset, CameraWindowDataset):
                runner.logger.warning('streams: each of the '
                                      f'{len(sampler.sequences)} sequences is one frame, so a model with a memory is '
                                      'trained without it. A lower batch_sampler.seq_split_num makes longer sequences, '
                                      'if the info files have scene tokens.')

    def before_train_epoch(self, runner) -> None:
        if not self.active:
            return
        loop = runner.train_loop
        sampler = loop.dataloader.batch_sampler
        sampler.start = runner.iter
        if not isinstance(loop, EpochBasedTrainLoop):
            sampler.endless = True
            # This loop first drops as many batches as were trained on; the loader starts behind them.
            loop.dataloader_iterator = itertools.chain(range(runner.iter), iter(loop.dataloader))

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        if self.active:
            checkpoint['meta']['streams'] = _streams(runner.train_dataloader.batch_sampler)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if self.active:
            np.random.seed([self.seed, runner.rank, runner.iter])
            random.seed(np.random.randint(2**31))
            torch.manual_seed(np.random.randint(2**31))


class TrainingSummaryHook(Hook):
    """Logs in one line what the batch size, the schedule and the learning rate have become on this machine."""

    def before_train(self, runner) -> None:
        loader, ranks = runner.train_dataloader, runner.world_size
        samples, batch = len(loader.dataset), loader.batch_sampler.batch_size
        accumulation = runner.cfg.optim_wrapper.get('accumulative_counts', 1)
        by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        per_epoch = len(loader) if by_epoch else -(-samples // (batch * ranks))
        rates = sorted({group.get('initial_lr', group['lr']) for group in runner.optim_wrapper.param_groups})
        told = ', '.join(f'{rate:g}' for rate in reversed(rates))
        if len(rates) > 4:  # one per layer
            told = f'{rates[-1]:g} to {rates[0]:g}'
        scale = runner.auto_scale_lr or {}
        scaled = f' (scaled by {batch * ranks / scale["base_batch_size"]:g})' if scale.get('enable') else ''
        runner.logger.info(
            f'training on {samples} samples: batch {batch} per process x {ranks} processes x {accumulation} '
            f'accumulated = {batch * ranks * accumulation}; {per_epoch} iterations per epoch, {runner.max_iters} in all'
            f', {runner.iter} done; lr {told}{scaled}')
