#!/usr/bin/env python
"""Track a detection JSON and score it: AMOTA, AMOTP, recall, MOTA, ID switches.

    tools/track.py results_nusc.json --data-root data/nuscenes --version v1.0-trainval --out DIR
    tools/track.py --ground-truth val ...    # annotations as detections of score 1: what the tracker itself loses

DIR receives tracking_nusc.json and, unless the tables have no annotations, the devkit's tracking_metrics_*.json.
tools/test.py does the same in the test run itself, with test_evaluator.tracking of the config.
"""
import argparse
import os
import sys

from mmengine.logging import print_log

from georope.errors import one_line_errors
from georope.evaluation import (
    Tracker,
    evaluate_tracks,
    ground_truth_results,
    open_tables,
    track_results,
    tracking_table,
    write_results,
)
from georope.evaluation.results import CAMERA_META
from georope.evaluation.scenes import read_scenes, scenes_of, split_frames
from georope.evaluation.submission import check_submission, effects, read_submission, report
from georope.evaluation.tracker import DEFAULT_GATE, TRACKING_NAMES
from georope.files import writable_folder

# Fit for a tracker: any frames, and also no detections.
NO_FAULTS = ('missing_sample', 'no_boxes')


def gate(text: str) -> tuple:
    """'pedestrian=1.5' -> ('pedestrian', 1.5); '2' -> every class."""
    name, _, metres = text.rpartition('=')
    return name, float(metres)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument('results', nargs='?', help='detection JSON; all of its frames are tracked and scored')
    source.add_argument('--ground-truth', metavar='SPLIT', help='track the annotations of a split instead')
    parser.add_argument('--data-root', required=True, help='root of the nuScenes tables')
    parser.add_argument('--version', required=True, help='of the tables: v1.0-mini, v1.0-trainval, v1.0-test')
    parser.add_argument('--out', required=True, help='folder for the files')
    parser.add_argument('--score-thr', type=float, default=0.25, help='leave out detections below this score')
    parser.add_argument('--gate', type=gate, nargs='+', default=[], metavar='[CLASS=]M',
                        help=f'largest distance in m, for all classes or by class (default {DEFAULT_GATE:g})')
    parser.add_argument('--max-age', type=int, default=3, help='frames until an unseen track is given up')
    parser.add_argument('--assignment', choices=['greedy', 'hungarian'], default='greedy')
    parser.add_argument('--compat', action='store_true', help='with the faults of the public code')
    return parser.parse_args()


@one_line_errors
def main() -> None:
    args = parse_args()
    writable_folder(args.out)
    gates = dict(args.gate)
    everywhere = gates.pop('', DEFAULT_GATE)
    tracker = Tracker({**dict.fromkeys(TRACKING_NAMES, everywhere), **gates}, args.score_thr, args.max_age,
                      args.assignment, args.compat)
    if args.ground_truth:
        tokens = [frame.token for frames in split_frames(args.ground_truth, args.data_root, args.version).values()
                  for frame in frames]
        nusc = open_tables(args.version, args.data_root, tokens)
        if not nusc.sample_annotation:
            sys.exit(f'{args.version} has no annotations: no --ground-truth to track')
        detections, meta = dict(ground_truth_results(nusc, tokens)), CAMERA_META
    else:
        violations = [fault for fault in check_submission(
            args.results, 'detection', read_scenes(args.version, args.data_root)) if fault.kind not in NO_FAULTS]
        if violations:
            print_log(report(violations, show=10))
            sys.exit(f'{args.results}: {len(violations)} violations, not tracked: {effects(violations)}')
        content, _ = read_submission(args.results)
        tokens, detections, meta = list(content['results']), content['results'], content['meta']
        nusc = open_tables(args.version, args.data_root, tokens)
    path = os.path.join(args.out, 'tracking_nusc.json')
    scenes = scenes_of(args.version, args.data_root, tokens)
    write_results(path, track_results(detections.__getitem__, scenes, tracker), meta)
    print_log(f'tracks of {len(scenes)} scenes, {len(tokens)} frames, written to {path}')
    if not nusc.sample_annotation:
        print_log(f'{args.version} has no annotations: nothing to score')
        return
    metrics = evaluate_tracks(nusc, path, tokens, args.out)
    print_log(f'nuScenes tracking, {tracker}\n{tracking_table(metrics)}')


if __name__ == '__main__':
    main()
