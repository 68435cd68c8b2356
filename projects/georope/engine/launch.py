"""Arguments and launching that train.py and test.py have in common, on machines with and without GPU."""
from __future__ import annotations

import argparse
import atexit
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import RUNNERS, init_default_scope
from mmengine.runner import Runner

from georope.registry import MODELS

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
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    # torch.distributed.launch spells it with a hyphen, older launchers do not; torchrun sets the variable instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def load_config(args: argparse.Namespace) -> Config:
    """Reads the config with the changes that the common arguments ask for."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or os.path.join('work_dirs', Path(args.config).stem)
    return cfg


def build_model(path: str, options: dict | None) -> tuple[Config, torch.nn.Module]:
    """Reads a config with the changes of ``--cfg-options`` and builds its model, without a runner."""
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options or {})
    init_default_scope(cfg.default_scope)
    return cfg, MODELS.build(cfg.model)


def build_runner(cfg: Config) -> Runner:
    """Builds the runner; without a GPU, first makes of the config what can run there, and says so."""
    if get_device() == 'cpu':
        _without_gpu(cfg)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


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
    """Ends the default process group, a gloo one: due before the interpreter ends.

    Gloo's threads let go of the last tensors when they get Python's lock, which nothing waits for. One that is still at
    it when the interpreter ends aborts a process that has done its work (pytorch #179291).
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    time.sleep(.5)
