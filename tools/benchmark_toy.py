#!/usr/bin/env python
"""Train and test configs on the toy world with several seeds at the same budget; mean and spread as a table.

    tools/benchmark_toy.py petr_toy petr-urope_toy --seeds 0 1 2 [--jobs 2] [--out configs/toy/results.json]

Each finished run is written to --out at once, and an interrupted one goes on from its last epoch: the command can be
stopped and started again. Toy results say nothing about nuScenes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[1]
METRICS = {'NDS': 'nd_score', 'mAP': 'mean_ap', 'mATE': 'trans_err', 'mASE': 'scale_err', 'mAOE': 'orient_err',
           'mAVE': 'vel_err', 'mAAE': 'attr_err'}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='+', help='names in configs/toy')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time; give each OMP_NUM_THREADS of its own')
    parser.add_argument('--out', type=Path, default=ROOT / 'configs/toy/results.json')
    parser.add_argument('--work-dirs', type=Path, default=ROOT / 'work_dirs/benchmark_toy')
    return parser.parse_args()


def train_and_test(config, seed, work_dir):
    """Numbers of one run: the devkit's, and seconds per iteration as logged (they depend on the machine's load)."""
    path = ROOT / f'configs/toy/{config}.py'
    checkpoint = work_dir / f'epoch_{Config.fromfile(path).train_cfg.max_epochs}.pth'
    work_dir.mkdir(parents=True, exist_ok=True)

    def run(tool, *arguments):
        with open(work_dir / f'{tool}.log', 'a') as log:
            command = [sys.executable, ROOT / 'tools' / f'{tool}.py', path, *arguments]
            subprocess.run(list(map(str, command)), check=True, stdout=log, stderr=log, cwd=ROOT, env=os.environ)
    if not checkpoint.exists():
        run('train', '--work-dir', work_dir, '--resume', '--cfg-options', f'randomness.seed={seed}')
    run('test', checkpoint, '--work-dir', work_dir, '--cfg-options', f'test_evaluator.jsonfile_prefix={work_dir}')
    summary = json.loads((work_dir / 'metrics_summary.json').read_text())
    return {name: summary[key] if key in summary else summary['tp_errors'][key] for name, key in METRICS.items()}


def table(results):
    lines = ['| config | seeds | ' + ' | '.join(METRICS) + ' |', '|---|---|' + '---|' * len(METRICS)]
    for config, seeds in results.items():
        cells = []
        for name in METRICS:
            values = [numbers[name] for numbers in seeds.values()]
            spread = f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else ''
            cells.append(f'{statistics.mean(values):.3f}{spread}')
        lines.append(f'| `{config}` | {", ".join(sorted(seeds))} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def main():
    args = parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    lock = Lock()

    def job(pair):
        config, seed = pair
        numbers = train_and_test(config, seed, args.work_dirs.resolve() / f'{config}_seed{seed}')
        with lock:
            results.setdefault(config, {})[str(seed)] = numbers
            temporary = args.out.with_suffix('.tmp')
            temporary.write_text(json.dumps(results, indent=1, sort_keys=True) + '\n')
            os.replace(temporary, args.out)
            print(f'{config} seed {seed}: NDS {numbers["NDS"]:.3f} mAP {numbers["mAP"]:.3f}', flush=True)

    todo = [(config, seed) for seed in args.seeds for config in args.configs
            if str(seed) not in results.get(config, {})]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(job, todo))
    print(table(results))


if __name__ == '__main__':
    main()
