#!/usr/bin/env python
"""NDS, mAP and errors by distance, visibility and day, night and rain, from one detection JSON.

    tools/evaluate_subsets.py results_nusc.json --data-root ROOT --version v1.0-trainval --out work_dirs/subsets

The folder receives subsets.json, subsets.md and subsets.png. What the subsets are: georope/evaluation/subsets.py.
"""
import argparse
import json
from pathlib import Path

from georope.engine import local_file
from georope.evaluation.devkit import open_tables
from georope.evaluation.submission import read_submission
from georope.evaluation.subsets import evaluate_subsets, plot_subsets, subset_table
from georope.files import atomic_open


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', type=local_file, help='detection JSON; all of its frames are scored')
    parser.add_argument('--data-root', required=True, help='root of the nuScenes tables')
    parser.add_argument('--version', required=True, help='of the tables: v1.0-mini, v1.0-trainval')
    parser.add_argument('--out', type=Path, required=True, help='folder for the files')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    content, _ = read_submission(args.results)
    tokens = list(content['results'])
    nusc = open_tables(args.version, args.data_root, tokens)
    if not nusc.sample_annotation:
        raise SystemExit(f'{args.version} has no annotations: nothing to score')
    scores = evaluate_subsets(nusc, args.results, tokens)
    table = subset_table(scores)
    for name, text in (('json', json.dumps(scores, indent=2)), ('md', table + '\n')):
        with atomic_open(str(args.out / f'subsets.{name}')) as file:
            file.write(text)
    plot_subsets(scores, args.out / 'subsets.png')
    print(table)


if __name__ == '__main__':
    main()
