#!/usr/bin/env python
"""Train and test configs on the toy world with several seeds at the same budget; mean and spread as a table.

    tools/benchmark_toy.py petr_toy petr-urope_toy --seeds 0 1 2 [--epochs 8] [--jobs 2]
    tools/benchmark_toy.py petr_toy petr-urope_toy --speed 9    # training steps in turn: the column `step`

All start from one pretrained backbone: `make demo` makes it, or tools/train.py configs/toy/backbone_toy.py.

Each finished run is written to --out at once, and an interrupted one goes on from its last epoch: the command can be
stopped and started again. Finished runs are not repeated: give a changed config other --work-dirs and --out.
Toy results say nothing about nuScenes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import torch
from mmengine.config import Config
from mmengine.utils import track_iter_progress

from georope.engine import build_runner
from georope.files import atomic_open

ROOT = Path(__file__).resolve().parents[1]
METRICS = {'NDS': 'nd_score', 'mAP': 'mean_ap', 'mATE': 'trans_err', 'mASE': 'scale_err', 'mAOE': 'orient_err',
           'mAVE': 'vel_err', 'mAAE': 'attr_err', 'AMOTA': 'amota'}
COLUMNS = ('NDS', 'mAP', 'mATE', 'mAOE', 'mAVE', 'AMOTA')  # of the table; the file has all
STATISTICS = ('running_mean', 'running_var', 'num_batches_tracked')


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='+', help='names in configs/toy')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--epochs', type=int, default=8, help='of every run; the learning rate falls within them')
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time; give each OMP_NUM_THREADS of its own')
    parser.add_argument('--speed', type=int, metavar='N', help='only time N training steps of each config, in turn, as '
                        'shares of those of the first')
    parser.add_argument('--out', type=Path, default=ROOT / 'configs/toy/results.json')
    parser.add_argument('--work-dirs', type=Path, default=ROOT / 'work_dirs/benchmark_toy')
    return parser.parse_args()


def train_and_test(config, seed, epochs, work_dir):
    """Numbers of one run: the devkit's, and parameters."""
    path = ROOT / f'configs/toy/{config}.py'
    checkpoint = work_dir / f'epoch_{epochs}.pth'
    schedule = [f'train_cfg.max_epochs={epochs}', f'train_cfg.val_interval={epochs}', f'param_scheduler.1.end={epochs}',
                f'param_scheduler.1.T_max={epochs}']
    work_dir.mkdir(parents=True, exist_ok=True)

    def run(tool, *arguments):
        with open(work_dir / f'{tool}.log', 'a') as log:
            command = [sys.executable, ROOT / 'tools' / f'{tool}.py', path, *arguments]
            subprocess.run(list(map(str, command)), check=True, stdout=log, stderr=log, cwd=ROOT, env=os.environ)
    if not checkpoint.exists():
        run('train', '--work-dir', work_dir, '--resume', '--cfg-options', f'randomness.seed={seed}', *schedule)
    summaries = [work_dir / name for name in ('metrics_summary.json', 'tracking_metrics_summary.json')]
    if not all(path.exists() for path in summaries):
        run('test', checkpoint, '--work-dir', work_dir, '--cfg-options', f'test_evaluator.jsonfile_prefix={work_dir}')
    detection, tracking = (json.loads(path.read_text()) for path in summaries)
    summary = {**tracking, **detection, **detection['tp_errors']}
    numbers = {name: summary[key] for name, key in METRICS.items()}
    weights = torch.load(checkpoint, weights_only=True, map_location='cpu')['state_dict']
    # Branches that all layers share are stored under the name of each.
    numbers['M parameters'] = sum({value.data_ptr(): value.numel() for name, value in weights.items()
                                   if not name.endswith(STATISTICS)}.values()) / 1e6
    return numbers


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def store(path, value, *keys):
    """Put ``value`` at nested ``keys`` of a JSON file, whatever else has been written to it meanwhile."""
    stored = node = read(path)
    for key in keys[:-1]:
        node = node.setdefault(key, {})
    node[keys[-1]] = value
    with atomic_open(str(path)) as file:
        file.write(json.dumps(stored, indent=1, sort_keys=True) + '\n')


def table(configs, results, steps):
    columns = ('config', 'seeds', *COLUMNS, 'M parameters', 'step')
    lines = ['| ' + ' | '.join(columns) + ' |', '|---' * len(columns) + '|']
    for config in configs:
        seeds = list(results[config].values())
        cells = [f'`{config}`', f'{len(seeds)}']
        for name in COLUMNS:
            values = [numbers[name] for numbers in seeds]
            spread = f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else ''
            cells.append(f'{statistics.mean(values):.3f}{spread}')
        cells.append(f'{seeds[0]["M parameters"]:.2f}')
        cells.append(f'{steps[config]["median"]:.2f}' if config in steps else '')
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def speed(configs, steps, directory):
    """Times of a training step (model and optimizer, not loading) as shares of the first config's: CPU time on a CPU.

    Returns:
        {config: dict(median=, least=, greatest=)}.
    """
    runs, times = {}, {config: [] for config in configs}
    for config in configs:
        cfg = Config.fromfile(ROOT / f'configs/toy/{config}.py')
        cfg.update(work_dir=directory, experiment_name=config, load_from=None, launcher='none', log_level='WARNING')
        runner = build_runner(cfg)
        wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
        runs[config] = runner.model.train(), wrapper, iter(runner.build_dataloader(cfg.train_dataloader, seed=0))
    for _ in track_iter_progress(list(range(steps + 1))):
        for config, (model, wrapper, batches) in runs.items():
            batch = next(batches)
            clock = time.process_time if next(model.parameters()).device.type == 'cpu' else time.perf_counter
            start = clock()
            model.train_step(batch, wrapper)  # its losses are read: nothing is left running
            times[config].append(clock() - start)
    print()
    shares = {config: [own / first for own, first in zip(times[config][1:], times[configs[0]][1:])]
              for config in configs}
    return {config: dict(median=statistics.median(share), least=min(share), greatest=max(share))
            for config, share in shares.items()}


def main():
    args = parse_args()
    if args.speed:
        with tempfile.TemporaryDirectory() as directory:
            for config, share in speed(args.configs, args.speed, directory).items():
                store(args.out, dict(share, of=args.configs[0]), 'step', config)
                print(f'{config:28} {share["median"]:.3f} ({share["least"]:.3f}..{share["greatest"]:.3f})')
        return
    budget, lock = f'{args.epochs} epochs', Lock()

    def job(pair):
        config, seed = pair
        work_dir = args.work_dirs.resolve() / f'{config}_{args.epochs}e_seed{seed}'
        numbers = train_and_test(config, seed, args.epochs, work_dir)
        with lock:
            store(args.out, numbers, budget, config, str(seed))
            print(f'{config} seed {seed}: NDS {numbers["NDS"]:.3f} mAP {numbers["mAP"]:.3f}', flush=True)

    done = read(args.out).get(budget, {})
    todo = [(config, seed) for seed in args.seeds for config in args.configs if str(seed) not in done.get(config, {})]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(job, todo))
    stored = read(args.out)
    print(table(args.configs, stored[budget], stored.get('step', {})))


if __name__ == '__main__':
    main()
