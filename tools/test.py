"""Tests a checkpoint: mmdet3d's tools/test.py for machines with and without GPU. Weights must fit the config exactly,
or --accept-weights says that others are meant.

The flags are mmdet3d's and --compile, without --ceph (a matter of the config: backend_args), --show and --wait-time
(pictures are written, no window is opened). --tta mirrors left and right, for PETR. Of --task only camera
images are left.
"""
import argparse

from georope.engine import CheckWeightsHook, add_common_arguments, build_runner, load_config, local_file
from georope.errors import one_line_errors
from georope.evaluation.partial import digest_of, go_on, run_test


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Test (and evaluate) a 3D detector')
    parser.add_argument('config', type=local_file, help='path of the config')
    parser.add_argument('checkpoint', type=local_file, help='path or address of the checkpoint')
    add_common_arguments(parser)
    parser.add_argument('--show-dir', help='write a picture of each frame here; below work_dir/timestamp if relative')
    parser.add_argument('--score-thr', type=float, default=0.1, help='lowest score of the boxes in the pictures')
    parser.add_argument('--task', choices=['multi-view_det'], default='multi-view_det', help='kind of the pictures')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation: mirrored frames as well, merged; '
                        'its options: --cfg-options model.tta.distance=METRES')
    parser.add_argument('--go-on', metavar='DONE', help='file of a test of this checkpoint that ended early: what it '
                        'did is not done again')
    return parser.parse_args()


@one_line_errors
def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    cfg.update(load_from=args.checkpoint, resume=False)
    if args.tta:
        if cfg.model.type != 'georope.PETR':
            raise SystemExit(f'--tta is for model.type="georope.PETR", not {cfg.model.type}')
        cfg.model.tta = cfg.model.get('tta') or dict(distance=1.0)
    if args.show_dir:
        if 'visualization' not in cfg.get('default_hooks', {}):
            raise SystemExit(f'--show-dir needs default_hooks.visualization in {args.config}, '
                             "a dict(type='georope.DetectionVisualizationHook')")
        cfg.default_hooks.visualization.update(draw=True, test_out_dir=args.show_dir, score_thr=args.score_thr,
                                               vis_task=args.task)
    model = digest_of(args.checkpoint)
    if args.go_on:
        go_on(cfg, args.go_on, model)
    runner = build_runner(cfg)
    runner.register_hook(CheckWeightsHook('test', args.accept_weights))
    run_test(runner, model)


if __name__ == '__main__':
    main()
