#!/usr/bin/env python
"""Draw frames of an info file: all cameras and a bird's-eye view, ground truth and, if given, detections."""
import argparse
import json
import os

import numpy as np
from mmengine.utils import track_iter_progress

from georope.datasets.info_file import load_infos
from georope.visualization import draw_info_frame, save_image


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--ann-file', required=True, help='v2 info file, e.g. nuscenes_infos_val.pkl')
    parser.add_argument('--data-root', required=True, help='folder that holds samples/')
    parser.add_argument('--results', help='detection JSON (results_nusc.json); without it only ground truth is drawn')
    parser.add_argument('--out', required=True, help='folder for the pictures, one PNG per frame, named by its token')
    parser.add_argument('--max-frames', type=int, help='draw this many frames, spread evenly over the file')
    parser.add_argument('--score-thr', type=float, default=0.25, help='leave out detections below this score')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    info = load_infos(args.ann_file)
    results = None
    if args.results:
        with open(args.results, encoding='utf-8') as file:
            results = json.load(file)['results']
    entries = info['data_list']
    if args.max_frames and args.max_frames < len(entries):
        entries = [entries[i] for i in np.linspace(0, len(entries) - 1, args.max_frames).round().astype(int)]
    for entry in track_iter_progress(entries):
        picture = draw_info_frame(entry, info['metainfo'], args.data_root, results, args.score_thr)
        save_image(os.path.join(args.out, f'{entry["token"]}.png'), picture)
    print(f'\n{len(entries)} pictures in {args.out}, e.g. {os.path.join(args.out, entries[0]["token"])}.png')


if __name__ == '__main__':
    main()
