#!/usr/bin/env python
"""Pack a result file for the nuScenes server: checked, zipped, with sizes and counts.

    tools/make_submission.py DIR/results_nusc.json --task detection --split test --data-root data/nuscenes --out s.zip
    tools/make_submission.py DIR/tracking_nusc.json --task tracking --split test --data-root data/nuscenes --out t.zip

A file with violations is not packed. The files come from tools/test.py (test_evaluator.jsonfile_prefix) and
tools/track.py. The server takes three results per year and account.
"""
import argparse
import os
import sys

from georope.engine.arguments import add_submission_arguments
from georope.errors import one_line_errors
from georope.evaluation.results import CAMERA_META
from georope.evaluation.submission import (
    check_submission,
    effects,
    read_submission,
    report,
    split_of,
    summarize,
    write_zip,
)
from georope.files import writable_folder, written_beside

RULES = dict(
    detection='Rule: at inference a detector may use about 0.5 s of past data (6 past camera images). The memory of '
              'StreamPETR reaches further back: read projects/georope/evaluation/README.md before you submit.',
    tracking='Rule: a tracker may use all past data of the current scene, none of the future or of other scenes.')


@one_line_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_submission_arguments(parser)
    parser.add_argument('--out', required=True, help='the zip to make')
    parser.add_argument('--uses', nargs='+', choices=[key[4:] for key in CAMERA_META],
                        help="what the method used, instead of the file's meta; weights that saw other data than "
                             'nuScenes and ImageNet (DD3D, nuImages) are external')
    args = parser.parse_args()
    if not args.out.endswith('.zip'):
        parser.error(f'--out {args.out}: the server takes a .zip')
    writable_folder(os.path.dirname(os.path.abspath(args.out)))
    scenes = split_of(args.split, args.data_root, args.version)
    violations = [violation for violation in check_submission(args.file, args.task, scenes, args.max_mb)
                  if not (args.uses and violation.kind == 'meta')]
    if violations:
        print(report(violations, args.show))
        sys.exit(f'{args.file}: {len(violations)} violations, not packed: {effects(violations)}')
    content, _ = read_submission(args.file)
    if args.uses:
        content['meta'] = {key: key[4:] in args.uses for key in CAMERA_META}
    with written_beside(args.out) as beside:
        write_zip(beside, f'{args.task}_{args.split}.json', content)
        violations = check_submission(beside, args.task, scenes, args.max_mb)  # the flags and the size are new
        if violations:
            print(report(violations, args.show))
            sys.exit(f'{args.out}: {len(violations)} violations, not packed: {effects(violations)}')
    print(summarize(content, args.task))
    print(f'{args.out}: {os.path.getsize(args.out) / 1e6:.1f} MB, ready for {args.split}\n{RULES[args.task]}')


if __name__ == '__main__':
    main()
