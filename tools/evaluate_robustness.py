#!/usr/bin/env python
"""NDS, mAP and AMOTA against perturbed cameras, as table and plot; several models side by side.

    tools/evaluate_robustness.py CONFIG CHECKPOINT [CONFIG CHECKPOINT ...] --work-dir work_dirs/robustness
    tools/evaluate_robustness.py CONFIG CHECKPOINT --kinds rotation --severities 1 2 5

What the kinds and their severities mean: georope.PerturbCameras. The work dir receives robustness.json (after each
setting; a new run goes on from there, unless config or weights have changed), robustness.md, robustness.png and the
logs of the tests. Weights must fit the config exactly. AMOTA comes where test_evaluator tracks.
"""
import argparse
import gc
import os
import time
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.logging import print_log

from georope.datasets.transforms.perturb import KINDS, PerturbCameras
from georope.engine import CheckWeightsHook, add_common_arguments, build_runner, load_config, local_file
from georope.errors import one_line_errors
from georope.evaluation.robustness import Scores, fingerprint, perturb, settings_of, severity_table
from georope.files import atomic_open
from georope.visualization.severity import plot_severity


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='+', type=local_file, metavar='CONFIG CHECKPOINT')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=list(KINDS))
    parser.add_argument('--severities', nargs='+', type=float, help='of the one kind given, in its unit (default: '
                        f'{"; ".join(f"{name} {of.severities} {of.unit}" for name, of in KINDS.items())})')
    parser.add_argument('--seed', type=int, default=0, help='of the perturbations')
    add_common_arguments(parser)
    args = parser.parse_args()
    if len(args.models) % 2:
        parser.error(f'each config needs a checkpoint; given: {" ".join(args.models)}')
    if args.severities and len(args.kinds) > 1:
        parser.error('--severities needs one kind: --kinds KIND')
    args.kinds = {kind: args.severities or KINDS[kind].severities for kind in args.kinds}
    try:
        for kind, severities in args.kinds.items():
            for severity in severities:
                PerturbCameras(kind, severity, args.seed)
    except ValueError as error:
        parser.error(str(error))
    args.models = list(zip(args.models[::2], args.models[1::2]))
    args.work_dir = args.work_dir or 'work_dirs/robustness'
    return args


def load(args: argparse.Namespace, config: str):
    return load_config(argparse.Namespace(**dict(vars(args), config=config)))


def test(args: argparse.Namespace, config: str, checkpoint: str, kind: str, severity: float) -> dict:
    """A test run of its own, so that nothing of another setting stays in a model's memory."""
    cfg = load(args, config)
    if kind:
        perturb(cfg, kind, severity, args.seed)
    name = f'{Path(config).stem}_{kind}{severity:g}'
    # mmengine keeps loggers by name for the whole process
    cfg.update(load_from=checkpoint, resume=False, work_dir=os.path.join(args.work_dir, name),
               experiment_name=f'{name}_{time.time_ns()}')
    for evaluator in cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]:
        if evaluator.get('jsonfile_prefix'):  # not over the results without a perturbation
            evaluator.jsonfile_prefix = cfg.work_dir
    runner = build_runner(cfg)
    runner.register_hook(CheckWeightsHook('test', args.accept_weights))
    return runner.test()


@one_line_errors
def main() -> None:
    args = parse_args()
    stems = [Path(config).stem for config, _ in args.models]
    models = {}
    scores = Scores(os.path.join(args.work_dir, 'robustness.json'))
    for stem, (config, checkpoint) in zip(stems, args.models):
        model = fingerprint(load(args, config), checkpoint)
        models[stem if stems.count(stem) == 1 else f'{stem} ({checkpoint})'] = model
        for setting in settings_of(model, args.kinds, args.seed):
            if setting not in scores:
                metrics = test(args, config, checkpoint, setting.kind, setting.severity)
                gc.collect()  # the runner holds itself, and with it the weights
                scores.add(setting, metrics, config, checkpoint)
                if is_main_process():
                    scores.save()
    if is_main_process():
        table = severity_table(scores, models, args.kinds, args.seed)
        path = Path(args.work_dir, 'robustness.md')
        with atomic_open(str(path)) as file:
            file.write(table)
        plot_severity(scores, models, args.kinds, args.seed, str(path.with_suffix('.png')))
        print_log(f'{table}\nwritten: {path}, {path.with_suffix(".png")}, {scores.path}')


if __name__ == '__main__':
    main()
