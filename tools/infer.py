#!/usr/bin/env python
"""Detect on images that no info file knows: one's own with a calibration file, or those of a nuScenes folder.

    tools/infer.py CONFIG CHECKPOINT frames.yaml --out detections            # format: georope.datasets.loose_frames
    tools/infer.py CONFIG CHECKPOINT NUSCENES_ROOT --version v1.0-mini --scenes scene-0103 --sweeps --out detections

Writes detections.json, a nuScenes result file by token, and a picture of each frame. Boxes are in the global frame;
where the file gives no lidar2global, in the LiDAR frame. Frames between the key frames (--sweeps, 12 Hz) see
StreamPETR's memory and leave no trace in it, so that key frames have the results of tools/test.py.
"""
import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from georope.datasets.loose_frames import nuscenes_frames, read_frames
from georope.datasets.transforms.loading import read_image
from georope.engine import local_file
from georope.evaluation.results import devkit_boxes, to_global, write_results
from georope.inference import Detector
from georope.visualization import Boxes, draw_frame, save_image


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', type=local_file, help='path of the config')
    parser.add_argument('checkpoint', type=local_file, help='path of the checkpoint')
    parser.add_argument('frames', help='YAML or JSON file with calibration and images, or a nuScenes folder')
    parser.add_argument('--out', required=True, help='folder for detections.json and the pictures')
    parser.add_argument('--version', help='nuScenes: folder of the tables, e.g. v1.0-mini')
    parser.add_argument('--scenes', nargs='+', metavar='NAME', help='nuScenes: only these')
    parser.add_argument('--sweeps', action='store_true', help='nuScenes: also the frames between the key frames')
    parser.add_argument('--device', help='e.g. cuda:0; default: a GPU if there is one')
    parser.add_argument('--score-thr', type=float, default=0.25, help='lowest score of the boxes in the pictures')
    parser.add_argument('--no-pictures', action='store_true', help='write detections.json alone')
    args = parser.parse_args()
    if Path(args.frames).is_dir() != bool(args.version):
        parser.error('--version belongs to a nuScenes folder' if args.version else
                     f'{args.frames} is a folder: give --version, that of its nuScenes tables')
    return args


def detect(detector: Detector, frames: list, args: argparse.Namespace) -> Iterator[tuple]:
    """Token and boxes of each frame; draws."""
    stream = detector.stream() if detector.remembers else None
    for frame in tqdm(frames, unit='frame'):
        inputs = dict(lidar2img=frame.lidar2img, cam2img=frame.cam2img, lidar2cam=frame.lidar2cam,
                      cameras=list(frame.images), token=frame.token)
        images = list(frame.images.values())
        if stream is None:
            sample = detector.predict(images, **inputs)
        elif frame.lidar2global is None or frame.timestamp is None:
            raise SystemExit(f'{args.frames}: frame {frame.token}: a model with a memory needs timestamp and '
                             'lidar2global of every frame')
        else:
            sample = stream.predict(images, **inputs, lidar2global=frame.lidar2global, timestamp=frame.timestamp,
                                    scene=frame.scene, remember=frame.key_frame)
        found = sample.pred_instances_3d
        if not args.no_pictures:
            boxes = Boxes.from_instances(found, detector.classes).above(args.score_thr)
            picture = draw_frame([read_image(path)[0] for path in images], frame.projection, boxes,
                                 cam_names=list(frame.images), title=f'{frame.scene}   {frame.token}')
            save_image(str(Path(args.out, f'{frame.token}.png')), picture)
        pose = np.eye(4) if frame.lidar2global is None else frame.lidar2global
        result = to_global(frame.token, found.bboxes_3d, found.scores_3d, found.labels_3d, pose)
        yield frame.token, devkit_boxes(result, detector.classes)


def main() -> None:
    args = parse_args()
    if args.version:
        frames = list(nuscenes_frames(args.frames, args.version, args.scenes, args.sweeps))
    else:
        frames = read_frames(args.frames)
    detector = Detector.from_checkpoint(args.config, args.checkpoint, args.device)
    path = Path(args.out, 'detections.json')
    write_results(str(path), detect(detector, frames, args))
    print(f'{len(frames)} frames: {path}' + ('' if args.no_pictures else f', pictures beside it, e.g. '
                                             f'{frames[0].token}.png'))


if __name__ == '__main__':
    main()
