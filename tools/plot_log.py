#!/usr/bin/env python
"""Draw the curves of trainings: losses, learning rate and scores, a line for each work dir.

    tools/plot_log.py work_dirs/petr_toy work_dirs/petr-urope_toy --out curves.png
"""
import argparse

from georope.errors import one_line_errors
from georope.visualization.curves import KEYS, Curves, chosen_keys, draw_curves
from georope.visualization.files import written_beside


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dirs', nargs='+', help='work dirs of trainings; resumed runs of one are joined')
    parser.add_argument('--out', required=True, help='picture to write: .png, .pdf or .svg')
    parser.add_argument('--keys', nargs='+', default=KEYS, metavar='KEY',
                        help="what to draw: names as logged, with * and ? as in a shell, e.g. grad_norm '*/car_AP' "
                        f'(default: {" ".join(KEYS)}, without the losses of earlier decoder layers, d0.*)')
    return parser.parse_args()


@one_line_errors
def main() -> None:
    args = parse_args()
    trainings = [Curves(work_dir) for work_dir in args.work_dirs]
    names = [training.name for training in trainings]
    for training, work_dir in zip(trainings, args.work_dirs):
        if names.count(training.name) > 1:
            training.name = work_dir
    keys = chosen_keys(trainings, args.keys)
    with written_beside(args.out) as beside:
        draw_curves(trainings, keys).savefig(beside, dpi=130)
    for training in trainings:
        print(f'{training.name}, last values: ' + ', '.join(
            f'{key} {training.values[key][1][-1]:.4g}' for key in keys if key in training.values))
        for key in keys:
            bad = training.not_finite(key)
            if bad:
                print(f'  {key} is not finite at {len(bad)} iterations, first {bad[0]}')
    print(f'{len(keys)} curves of {len(trainings)} trainings in {args.out}')


if __name__ == '__main__':
    main()
