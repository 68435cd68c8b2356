"""Make a synthetic world in nuScenes format, e.g. `python tools/make_toy_nuscenes.py data/toy_nuscenes`."""
import argparse

from georope.toy import EDGE_CASES, make_toy_nuscenes


def parse_args():
    cases = '\n'.join(f'  {name}: {text}' for name, text in EDGE_CASES.items())
    parser = argparse.ArgumentParser(description=__doc__, epilog=f'edge cases:\n{cases}',
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', help='data root to make')
    parser.add_argument('--scenes', type=int, nargs=2, default=(8, 2), metavar=('TRAIN', 'VAL'),
                        help='scenes of mini_train (at most 8) and mini_val (at most 2), default 8 2')
    parser.add_argument('--samples-per-scene', type=int, default=40, help='key frames, 0.5 s apart, default 40')
    parser.add_argument('--image-size', type=int, nargs=2, default=(225, 400), metavar=('HEIGHT', 'WIDTH'),
                        help='pixels, default 225 400; the field of view does not change')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--num-cameras', type=int, default=6, help='1 to 12, default 6')
    parser.add_argument('--edge-cases', nargs='*', default=(), choices=EDGE_CASES, metavar='CASE', help='see below')
    parser.add_argument('--overwrite', action='store_true', help='replace a toy set made with other options')
    return parser.parse_args()


def main():
    args = vars(parse_args())
    print(f'toy world: {make_toy_nuscenes(args.pop("out"), **args)}')


if __name__ == '__main__':
    main()
