"""Write info files from the nuScenes tables, or complete existing ones."""
import argparse

from georope.datasets.converter import create_infos, update_infos
from georope.errors import one_line_errors


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root-path', required=True, help='data root: the folder that holds the folder of the version')
    parser.add_argument('--version', required=True, help='v1.0-mini, v1.0-trainval, v1.0-test or your own')
    parser.add_argument('--out-dir', help='where the files go (default: the data root; with --update: in place)')
    parser.add_argument('--update', nargs='+', metavar='FILE',
                        help='add scenes, order, per-camera poses and image sizes to these mmdet3d v2 info files')
    return parser.parse_args()


@one_line_errors
def main() -> None:
    args = parse_args()
    if args.update:
        update_infos(args.update, args.root_path, args.version, args.out_dir)
    else:
        create_infos(args.root_path, args.version, args.out_dir)


if __name__ == '__main__':
    main()
