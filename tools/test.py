"""Tests a checkpoint: mmdet3d's tools/test.py for machines with and without GPU. Weights must fit the config exactly,
or --accept-weights says that others are meant.

The flags are mmdet3d's and --compile, without --ceph (a matter of the config: backend_args), --show and --wait-time
(pictures are written, no window is opened) and --tta (mmdet3d has it for segmentation only). Of --task only camera
images are left.
"""
import argparse

from georope.engine import CheckWeightsHook, add_common_arguments, build_runner, load_config, local_file


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Test (and evaluate) a 3D detector')
    parser.add_argument('config', type=local_file, help='path of the config')
    parser.add_argument('checkpoint', type=local_file, help='path or address of the checkpoint')
    add_common_arguments(parser)
    parser.add_argument('--show-dir', help='write a picture of each frame here; below work_dir/timestamp if relative')
    parser.add_argument('--score-thr', type=float, default=0.1, help='lowest score of the boxes in the pictures')
    parser.add_argument('--task', choices=['multi-view_det'], default='multi-view_det', help='kind of the pictures')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    cfg.update(load_from=args.checkpoint, resume=False)
    if args.show_dir:
        if 'visualization' not in cfg.get('default_hooks', {}):
            raise SystemExit(f'--show-dir needs default_hooks.visualization in {args.config}, '
                             "a dict(type='georope.DetectionVisualizationHook')")
        cfg.default_hooks.visualization.update(draw=True, test_out_dir=args.show_dir, score_thr=args.score_thr,
                                               vis_task=args.task)
    runner = build_runner(cfg)
    runner.register_hook(CheckWeightsHook('test', args.accept_weights))
    runner.test()


if __name__ == '__main__':
    main()
