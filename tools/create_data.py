"""Write info files from the nuScenes tables, or complete existing ones.

    tools/create_data.py --root-path data/nuscenes --version v1.0-mini
    tools/create_data.py nuscenes --root-path data/nuscenes --out-dir data/nuscenes --extra-tag nuscenes

The second is mmdet3d's own command.

Faults of the tables are listed up to ten at a time, before anything is written.
"""
import argparse
from pathlib import Path

from georope.datasets.converter import create_infos, update_infos
from georope.errors import one_line_errors

PARTS = ('v1.0-trainval', 'v1.0-test')  # of mmdet3d's version v1.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('dataset', nargs='?', choices=['nuscenes'], default='nuscenes', help='for the habit of mmdet3d')
    parser.add_argument('--root-path', required=True, help='data root: the folder that holds the folder of the version')
    parser.add_argument('--version', default='v1.0', help='v1.0-mini, v1.0-trainval, v1.0-test or your own (default: '
                        f'those of {" and ".join(PARTS)} that are there)')
    parser.add_argument('--out-dir', help='where the files go (default: the data root; with --update: those of FILE)')
    parser.add_argument('--extra-tag', default='nuscenes', help='first part of the names of the files (default: '
                        '%(default)s)')
    parser.add_argument('--only-existing', action='store_true', help='leave out scenes of which an image is not there: '
                        'for parts of nuScenes')
    parser.add_argument('--update', nargs='+', metavar='FILE',
                        help='add scenes, order, per-camera poses and image sizes to these mmdet3d v2 info files')
    return parser.parse_args()


@one_line_errors
def main() -> None:
    args = parse_args()
    root = Path(args.root_path).expanduser()
    versions = [args.version]
    if args.version == 'v1.0' and not (root / args.version).is_dir():
        versions = [name for name in PARTS if (root / name).is_dir()] or [PARTS[0]]
    for version in versions:
        if args.update:
            update_infos(args.update, root, version, args.out_dir)
        else:
            create_infos(root, version, args.out_dir, args.extra_tag, args.only_existing)


if __name__ == '__main__':
    main()
