#!/usr/bin/env python
"""From data to a picture: info files, training, test, drawing; prints each command before it runs it.

    tools/demo.py                                   # PETR + URoPE on the toy world, made first where it is missing
    tools/demo.py --root /data/nuscenes --version v1.0-mini --config configs/toy/petr-urope_overfit.py

What is there already is used again, and a training that was interrupted goes on: delete the work dir to start over.
"""
import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[1]
TOY_ROOT = ROOT / 'data/toy_nuscenes'
BACKBONE = ROOT / 'configs/toy/backbone_toy.py'


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--config', type=Path, default=ROOT / 'configs/toy/petr-urope_toy.py')
    parser.add_argument('--root', type=Path, default=TOY_ROOT, help='a nuScenes root; nothing is written into it')
    parser.add_argument('--version', default='v1.0-mini')
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/<name of the config>')
    parser.add_argument('--score-thr', type=float, default=0.2, help='lowest score of the boxes in the pictures')
    return parser.parse_args()


def say(text):
    print(f'\n\033[1m[demo]\033[0m {text}', flush=True)


def run(root, tool, *arguments):
    """Run a tool of this folder as a user would; its output goes through."""
    command = [sys.executable, ROOT / 'tools' / tool, *arguments]
    shown = ['python', f'tools/{tool}', *arguments]
    say(f'$ NUSCENES_ROOT={root} ' + shlex.join(map(str, shown)))
    done = subprocess.run(list(map(str, command)), env={**os.environ, 'NUSCENES_ROOT': f'{root}/'})
    if done.returncode:
        sys.exit(f'[demo] tools/{tool} failed (exit status {done.returncode}), see above; a new run goes on from here')


def main():
    args = parse_args()
    start = time.time()
    root = args.root.resolve()
    work_dir = (args.work_dir or ROOT / 'work_dirs' / args.config.stem).resolve()
    if root == TOY_ROOT:
        run(root, 'make_toy_nuscenes.py', root)
    infos = root if root == TOY_ROOT else work_dir
    train_infos, val_infos = infos / 'nuscenes_infos_train.pkl', infos / 'nuscenes_infos_val.pkl'
    if train_infos.exists() and val_infos.exists():
        say(f'info files are there: {train_infos}, {val_infos}')
    else:
        run(root, 'create_data.py', '--root-path', root, '--version', args.version, '--out-dir', infos)

    cfg = Config.fromfile(args.config)
    overfit = cfg.train_dataloader.dataset.ann_file == cfg.val_dataloader.dataset.ann_file
    options = ['--work-dir', work_dir, '--cfg-options',
               f'train_dataloader.dataset.ann_file={val_infos if overfit else train_infos}',
               *(f'{key}.ann_file={val_infos}' for key in ('val_dataloader.dataset', 'test_dataloader.dataset',
                                                           'val_evaluator', 'test_evaluator'))]
    backbone = Path(cfg.load_from) if cfg.load_from else None
    if backbone and backbone.exists():
        say(f'the backbone is pretrained: {backbone}')
    elif backbone and backbone.parent.name == BACKBONE.stem:
        run(root, 'train.py', BACKBONE, '--resume', '--work-dir', backbone.parent, *options[2:4])
    by_epoch = 'max_epochs' in cfg.train_cfg
    checkpoint = work_dir / (f'epoch_{cfg.train_cfg.max_epochs}.pth' if by_epoch else
                             f'iter_{cfg.train_cfg.max_iters}.pth')
    if checkpoint.exists():
        say(f'the trained model is there: {checkpoint}')
    else:
        run(root, 'train.py', args.config, '--resume', *options)

    results, pictures = work_dir / 'results', work_dir / 'pictures'
    run(root, 'test.py', args.config, checkpoint, *options, f'test_evaluator.jsonfile_prefix={results}')
    run(root, 'visualize.py', '--ann-file', val_infos, '--data-root', root, '--results', results / 'results_nusc.json',
        '--out', pictures, '--max-frames', 4, '--score-thr', args.score_thr)
    minutes = (time.time() - start) / 60
    first = min(pictures.glob('*.png'))
    say(f'detections: {results / "results_nusc.json"}\n       pictures:   {first} (and others beside it)\n'
        f'       {minutes:.1f} minutes in all')


if __name__ == '__main__':
    main()
