"""Arguments and launching that train.py and test.py have in common, on machines with and without GPU."""
from __future__ import annotations

import argparse
import atexit
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches
from inspect import signature
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS, init_default_scope
from mmengine.runner import Runner

from georope.models import PETRHead
from georope.registry import MODELS

from .checkpoint import install_loaders

# The keys of a config that something is built from: mmengine's runner, and what it and the tools read by name.
_USED = {*signature(Runner.__init__).parameters, 'compile', 'find_unused_parameters', 'model_wrapper_cfg',
         'runner_type', 'sync_bn', 'vis_backends'}
_AMP_ONLY = ('loss_scale', 'dtype', 'use_fsdp')


def local_file(path: str) -> str:
    """An argparse type: a file that must exist, unless it is an address such as https://..."""
    if '://' not in path and not Path(path).expanduser().is_file():
        raise argparse.ArgumentTypeError(f'no such file: {path}')
    return path


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--work-dir', help='directory of logs, checkpoints and metrics; default: the work_dir of the '
                        'config, or work_dirs/<name of the config> below the current directory')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='change the config: key=value ...; nested '
                        'keys with dots, lists as key="[a,b]" without blanks')
    parser.add_argument('--compile', action='store_true', help='torch.compile for rotations and decoder: minutes '
                        'before the first steps, faster ones after; its options: --cfg-options compile.mode=...')
    parser.add_argument('--accept-weights', action='store_true', help='go on with a checkpoint of another model or '
                        'encoding, or one that fills less than half of every part; what differs is logged')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    # torch.distributed.launch spells it with a hyphen, older launchers do not; torchrun sets the variable instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def read_config(path: str) -> Config:
    """A config file. An empty NUSCENES_ROOT counts as not set; mmengine would stop at it."""
    if not os.environ.get('NUSCENES_ROOT', 'unset').strip():
        del os.environ['NUSCENES_ROOT']
    return Config.fromfile(path)


def load_config(args: argparse.Namespace) -> Config:
    """Reads the config with the changes that the common arguments ask for."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = read_config(args.config)
    cfg.launcher = args.launcher
    merge_options(cfg, args.cfg_options or {})
    if args.compile:
        cfg.compile = cfg.get('compile') or True
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or os.path.join('work_dirs', Path(args.config).stem)
    return cfg


def merge_options(cfg: Config, options: dict) -> None:
    """Puts ``--cfg-options`` into a config.

    Raises:
        SystemExit: if an option changes nothing that is built: base configs hold values such as ``encoding`` or
            ``image_aug`` under a name of their own, and those that use them have their own copy.
    """
    cfg.merge_from_dict(options)
    paths = {path for key in _USED.intersection(cfg) for path in _paths(cfg[key], key)}
    for option in options:
        if option.partition('.')[0] not in _USED:
            meant = ', '.join(_nearest(option, paths))
            raise SystemExit(f'--cfg-options {option}: nothing is built from it'
                             + (f'; use {meant}' if meant else '; it is no key of this config'))


def _paths(value, path: str) -> Iterator[str]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, f'{path}.{key}')


def _nearest(option: str, paths: set[str]) -> list[str]:
    """The paths of a config that an option may mean: same end as its begin, else same end, else similar spelling."""
    parts = option.split('.')
    for number in range(len(parts), 0, -1):
        start, rest = '.'.join(parts[:number]), ''.join(f'.{part}' for part in parts[number:])
        found = sorted(path + rest for path in paths if path.endswith(f'.{start}'))
        if found:
            return found
    return sorted(path for path in paths if path.endswith(f'.{parts[-1]}')) or get_close_matches(option, paths, 1)


def build_model(path: str, options: dict | None) -> tuple[Config, torch.nn.Module]:
    """Reads a config with the changes of ``--cfg-options`` and builds its model, without a runner."""
    install_loaders()
    cfg = read_config(path)
    merge_options(cfg, options or {})
    init_default_scope(cfg.default_scope)
    return cfg, MODELS.build(cfg.model)


def build_runner(cfg: Config) -> Runner:
    """Builds the runner. Without a GPU, it first changes the config to what can run there, and says so.

    ``cfg.compile`` (True, or options of ``torch.compile``) compiles rotations and decoder. It is taken out of the
    config: mmengine would compile the whole step, which fails at the meta information of samples.
    """
    install_loaders()
    if get_device() == 'cpu':
        _without_gpu(cfg)
    _adjust(cfg)
    options = cfg.pop('compile', None)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    if options:
        _compile(runner.model, {} if options is True else options)
    return runner


def _adjust(cfg: Config) -> None:
    """Adjusts usual settings of a config so that they have the intended effect."""
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(name) or {}
        if loader.get('num_workers') == 0:  # torch refuses both without workers
            loader.pop('persistent_workers', None)
            loader.pop('prefetch_factor', None)
    backends, visualizer = cfg.get('vis_backends'), cfg.get('visualizer') or {}
    if backends and backends != visualizer.get('vis_backends'):
        if visualizer.get('vis_backends', [dict(type='LocalVisBackend')]) != [dict(type='LocalVisBackend')]:
            raise SystemExit('vis_backends and visualizer.vis_backends of the config differ: leave out one')
        cfg.visualizer = dict(dict(type='Visualizer', **visualizer) if 'type' not in visualizer else visualizer,
                              vis_backends=backends)


def _compile(model: torch.nn.Module, options: dict) -> None:
    head = getattr(model.module if is_model_wrapper(model) else model, 'pts_bbox_head', None)
    if not isinstance(head, PETRHead):
        raise SystemExit('--compile is for models with pts_bbox_head=dict(type="georope.PETRHead") or one derived from '
                         f'it; here it is a {type(head).__name__}')
    if 'target' in options:
        raise SystemExit(f'compile.target={options["target"]}: what is compiled is always rotations and decoder (the '
                         'whole model cannot be); leave target out')
    if not hasattr(torch.compiler, 'is_compiling'):
        raise SystemExit(f'--compile needs torch 2.3 or later, this is {torch.__version__}')
    head.compile(**options)
    print_log('torch.compile: rotations and decoder; the first steps take minutes', logger='current')


def _without_gpu(cfg: Config) -> None:
    """mmengine's own launch selects a CUDA device, and its AMP wrapper refuses to be built without one."""
    if cfg.launcher not in ('none', 'pytorch'):
        raise SystemExit(f'--launcher {cfg.launcher} needs GPUs, and none was found; on CPU use --launcher pytorch')
    if cfg.get('sync_bn'):
        raise SystemExit(f'--sync_bn {cfg.sync_bn} needs GPUs, and none was found: SyncBatchNorm has no CPU form')
    if cfg.get('optim_wrapper', {}).get('type') == 'AmpOptimWrapper':
        print_log('no GPU was found: training in float32 (OptimWrapper instead of AmpOptimWrapper)')
        cfg.optim_wrapper.type = 'OptimWrapper'
        for key in _AMP_ONLY:
            cfg.optim_wrapper.pop(key, None)
    if cfg.launcher == 'pytorch':
        if not torch.distributed.is_initialized():  # by a runner before this one
            limit = cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout')  # s; as mmengine reads it
            torch.distributed.init_process_group('gloo', **({} if limit is None else dict(timeout=timedelta(
                seconds=limit))))
            atexit.register(leave_gloo)
        default = dict(type='MMDistributedDataParallel', broadcast_buffers=False,
                       find_unused_parameters=cfg.get('find_unused_parameters', False))
        cfg.model_wrapper_cfg = dict(cfg.get('model_wrapper_cfg') or default, device_ids=None)


def leave_gloo() -> None:
    """Ends the default process group, a gloo one. Must be called before the interpreter ends.

    Gloo's threads release the last tensors when they get Python's lock, and nothing waits for that. A thread that is
    still doing so when the interpreter ends aborts a process whose work is done (pytorch #179291).
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    time.sleep(.5)
