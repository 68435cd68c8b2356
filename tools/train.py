"""Trains a model: mmdet3d's tools/train.py for machines with and without GPU, with a --resume that loads safely.

The flags are mmdet3d's and --compile; only --ceph is left out (file backends are a matter of the config: backend_args).
A run that was stopped and resumed repeats the epoch it was in. Weights, optimizer, learning rate and the order of the
samples are those of a run in one go; random draws (dropout, denoising noise, augmentation) are others, since mmengine
does not save the state of the generators. Trainings on streams (georope.StreamBatchSampler) repeat these too, from a
checkpoint of a whole epoch. A run of another schedule, or streams of another number of slots, are refused.
"""
import argparse

from mmengine.device import get_device
from mmengine.logging import print_log

from georope.engine import (
    CheckScheduleHook,
    CheckWeightsHook,
    TrainingSummaryHook,
    add_common_arguments,
    build_runner,
    last_checkpoint,
    load_config,
    local_file,
)
from georope.errors import one_line_errors


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a 3D detector')
    parser.add_argument('config', type=local_file, help='path of the config')
    add_common_arguments(parser)
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision (needs a GPU)')
    parser.add_argument('--sync_bn', choices=['none', 'torch', 'mmcv'], default='none',
                        help='make SyncBatchNorm layers of all BatchNorm layers (needs GPUs)')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size')
    parser.add_argument('--resume', nargs='?', const='auto', help='go on from this checkpoint; without a path from the '
                        'last one in the work dir, or from the beginning where there is none yet')
    args = parser.parse_args()
    if args.amp and get_device() == 'cpu':
        parser.error('--amp needs a GPU, and none was found: leave it out to train in float32')
    return args


@one_line_errors
def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    if args.amp and cfg.optim_wrapper.type != 'AmpOptimWrapper':
        if cfg.optim_wrapper.type != 'OptimWrapper':
            raise SystemExit(f'--amp needs optim_wrapper.type OptimWrapper, not {cfg.optim_wrapper.type}')
        cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic')
    if args.sync_bn != 'none':
        cfg.sync_bn = args.sync_bn
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise SystemExit(f'--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in {args.config}')
        cfg.auto_scale_lr.enable = True
    if args.resume == 'auto':
        checkpoint = last_checkpoint(cfg.work_dir)
        if checkpoint is None:
            print_log(f'--resume: no checkpoint in {cfg.work_dir} yet, training starts from the beginning')
        else:
            cfg.update(resume=True, load_from=str(checkpoint))
    elif args.resume:
        cfg.update(resume=True, load_from=args.resume)

    runner = build_runner(cfg)
    runner.register_hook(CheckWeightsHook('resume' if cfg.get('resume') else 'init', args.accept_weights))
    if cfg.get('resume'):
        runner.register_hook(CheckScheduleHook())
    runner.register_hook(TrainingSummaryHook())
    runner.train()


if __name__ == '__main__':
    main()
