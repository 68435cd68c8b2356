#!/usr/bin/env python
"""Draw frames of an info file: all cameras and a bird's-eye view; ground truth and, if given, detections or tracks."""
import argparse
import os
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from georope.datasets.info_file import in_scene_order, load_infos
from georope.errors import one_line_errors, refuse
from georope.evaluation.submission import read_results
from georope.files import writable_folder
from georope.visualization import draw_info_frame, save_film, save_image
from georope.visualization.info import image_paths

TAIL = 5.  # seconds
UPDATE = 'add them with tools/create_data.py --update'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--ann-file', required=True, help='v2 info file, e.g. nuscenes_infos_val.pkl')
    parser.add_argument('--data-root', required=True, help='folder that holds samples/')
    parser.add_argument('--results', help='detections (results_nusc.json) or tracks (tracking_nusc.json, drawn with '
                        f'ids and the way of the last {TAIL:g} s); without it only ground truth is drawn')
    parser.add_argument('--out', required=True, help='folder for the pictures, one PNG per frame, named by its token')
    parser.add_argument('--scenes', nargs='+', metavar='NAME', help='only these, e.g. scene-0103')
    parser.add_argument('--max-frames', type=int, help='draw this many frames, spread evenly over those chosen')
    parser.add_argument('--score-thr', type=float, default=0.25, help='leave out boxes below this score')
    parser.add_argument('--film', choices=['mp4', 'gif'], help='also write one film per scene, named by it (mp4: for '
                        'players, browsers do not know MPEG-4 part 2; gif: for everything, larger)')
    parser.add_argument('--fps', type=float, default=4., help='frames per second of the films; nuScenes has 2')
    args = parser.parse_args()
    if args.film and args.max_frames:
        parser.error('--max-frames draws single frames, --film whole scenes: choose one')
    return args


def choose(entries: list, args: argparse.Namespace) -> list:
    """The entries to draw, in order of scene and time."""
    if (args.scenes or args.film) and any('scene_name' not in entry for entry in entries):
        raise SystemExit(f'{args.ann_file} does not name scenes: {UPDATE}')
    if args.scenes:
        names = {entry['scene_name'] for entry in entries}
        if not names.issuperset(args.scenes):
            raise SystemExit(f'{args.ann_file} has no {", ".join(sorted(set(args.scenes) - names))}, but '
                             f'{", ".join(sorted(names))}')
        entries = [entry for entry in entries if entry['scene_name'] in args.scenes]
    if args.max_frames and args.max_frames < len(entries):
        entries = [entries[i] for i in np.linspace(0, len(entries) - 1, args.max_frames).round().astype(int)]
    return entries


@one_line_errors
def main() -> None:
    args = parse_args()
    info = load_infos(args.ann_file)
    results = None
    if args.results:
        results = read_results(args.results)
    ordered = in_scene_order(info['data_list'])
    tracked = results is not None and any('tracking_id' in box for boxes in results.values() for box in boxes)
    if tracked and any('scene_token' not in entry for entry in ordered):
        raise SystemExit(f'tracks need scenes, which {args.ann_file} does not have: {UPDATE}')
    chosen = choose(ordered, args)
    writable_folder(args.out)
    if results is not None:
        refuse(args.results, [f'{args.results} has no sample {entry["token"]}, but {len(results)} others: not made '
                              'from this info file' for entry in chosen if entry['token'] not in results])
    refuse(args.data_root, [f'sample {entry["token"]}: no image at {" or ".join(tried)}; check --data-root'
                            for entry in chosen for path, tried in image_paths(entry, args.data_root) if path is None])

    def draw(entries: list) -> Iterator[np.ndarray]:
        for entry in entries:
            past = [other for other in ordered if other['scene_token'] == entry['scene_token']
                    and 0 < entry['timestamp'] - other['timestamp'] <= TAIL] if tracked else []
            picture = draw_info_frame(entry, info['metainfo'], args.data_root, results, args.score_thr, past)
            save_image(os.path.join(args.out, f'{entry["token"]}.png'), picture)
            bar.update()
            yield picture

    with tqdm(total=len(chosen), unit='frame') as bar:
        if not args.film:
            for _ in draw(chosen):
                pass
        for scene in dict.fromkeys(entry['scene_name'] for entry in chosen) if args.film else ():
            save_film(os.path.join(args.out, f'{scene}.{args.film}'),
                      draw([entry for entry in chosen if entry['scene_name'] == scene]), args.fps)
    print(f'{len(chosen)} pictures in {args.out}, e.g. {os.path.join(args.out, chosen[0]["token"])}.png')


if __name__ == '__main__':
    main()
