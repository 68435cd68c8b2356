"""Command-line arguments that several tools share."""
import argparse

from georope.evaluation.submission import MAX_ZIP_MB, TASKS


def add_submission_arguments(parser: argparse.ArgumentParser) -> None:
    """What tools/validate_submission.py and tools/make_submission.py ask for."""
    parser.add_argument('file', help='result file: JSON, or a zip that holds one')
    parser.add_argument('--task', choices=TASKS, required=True)
    parser.add_argument('--split', required=True, help='val, test, mini_val, ..., or one of splits.json')
    parser.add_argument('--data-root', required=True, help='root of the nuScenes tables')
    parser.add_argument('--version', help="of the tables, if it is not the split's own")
    parser.add_argument('--max-mb', type=float, default=MAX_ZIP_MB, help='limit of a zip (default %(default)s)')
    parser.add_argument('--show', type=int, default=10, help='violations shown of each kind; 0: all')
