#!/usr/bin/env python
"""Check a submission for the nuScenes server offline: every violation with sample token and box index.

    tools/validate_submission.py submission.zip --task detection --split test --data-root data/nuscenes

Of the tables only scene.json and sample.json are read. The exit status is 1 if anything is wrong.
"""
import argparse
import sys

from georope.engine.arguments import add_submission_arguments
from georope.errors import one_line_errors
from georope.evaluation.submission import (
    check_submission,
    effects,
    read_submission,
    report,
    split_of,
    summarize,
)


@one_line_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_submission_arguments(parser)
    args = parser.parse_args()
    violations = check_submission(args.file, args.task, split_of(args.split, args.data_root, args.version), args.max_mb)
    if violations:
        print(report(violations, args.show))
        sys.exit(f'{args.file}: {len(violations)} violations: {effects(violations)}')
    print(summarize(read_submission(args.file)[0], args.task))
    print(f'{args.file}: a valid {args.task} submission for {args.split}')


if __name__ == '__main__':
    main()
