#!/usr/bin/env python
"""Time and peak memory of the readers on a set of nuScenes' size: synthetic tables, no images.

    tools/benchmark_data.py DIR create                # tables -> info files: 850 scenes, 34149 key frames, 1.1 M boxes
    tools/benchmark_data.py DIR load --workers 8      # the training info file through a data loader, without images
    tools/benchmark_data.py DIR validate              # a submission of val: 6019 frames of 300 boxes
    tools/benchmark_data.py DIR compare --root data/nuscenes_mini   # create_data and mmdet3d's converter on one set

DIR receives what is made up, once. Memory is the peak of the sum over all processes (proportional set size, Linux).
"""
import argparse
import contextlib
import cProfile
import importlib.util
import json
import os
import pickle
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import mmdet3d
import numpy as np
from nuscenes.utils.splits import create_splits_scenes
from torch.utils.data import DataLoader
from tqdm import tqdm

from georope.datasets import NuScenesCameraDataset
from georope.datasets.converter import create_infos
from georope.datasets.tables import CATEGORIES
from georope.engine.peak import Peak
from georope.evaluation import write_results
from georope.evaluation.scenes import split_frames
from georope.evaluation.submission import check_submission

VERSION = 'v1.0-trainval'
CAMERAS = ('CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK', 'CAM_BACK_LEFT', 'CAM_BACK_RIGHT')
FRAMES, BOXES = 34149, 1_100_000  # of nuScenes train and val
STEP = 500_000  # microseconds
LENGTH = 18  # frames of an object
FORWARD = [.5, -.5, .5, -.5]  # camera axes in the ego frame


def make(folder: Path, frames: int, boxes: int, sweeps: int) -> None:
    """Write tables of all scenes of train and val, with a fixed seed."""
    rng, names = np.random.default_rng(0), [*create_splits_scenes()['train'], *create_splits_scenes()['val']]
    names = [names[i] for i in np.linspace(0, len(names) - 1, min(len(names), max(2, frames // 40))).astype(int)]
    tables = {name: [] for name in ('scene', 'sample', 'sample_data', 'ego_pose', 'instance', 'sample_annotation')}
    tables['sensor'] = [dict(token=name, channel=name, modality='camera') for name in CAMERAS]
    tables['sensor'].append(dict(token='LIDAR_TOP', channel='LIDAR_TOP', modality='lidar'))
    tables['calibrated_sensor'] = [
        dict(token=row['token'], sensor_token=row['token'], translation=[1., 0., 1.5],
             rotation=FORWARD if row['modality'] == 'camera' else [1., 0., 0., 0.],
             camera_intrinsic=[[1266., 0, 800], [0, 1266., 450], [0, 0, 1]] if row['modality'] == 'camera' else [])
        for row in tables['sensor']]
    tables['category'] = [dict(token=name, name=category) for name, category in CATEGORIES.items()]
    tables['attribute'] = [dict(token='moving', name='vehicle.moving')]
    objects = round(boxes / len(names) / LENGTH)
    for number, (name, part) in enumerate(zip(tqdm(names, desc='made up', unit='scene'),
                                              np.array_split(np.arange(frames), len(names)))):
        count, start = len(part), number * 60_000_000
        tokens = [f'{name}-{frame:024}' for frame in range(count)]  # as long as a real one
        tables['scene'].append(dict(token=name, name=name, nbr_samples=count, first_sample_token=tokens[0],
                                    last_sample_token=tokens[-1], log_token='', description=''))
        for i, token in enumerate(tokens):
            tables['sample'].append(dict(token=token, timestamp=start + i * STEP, scene_token=name,
                                         prev=tokens[i - 1] if i else '', next=tokens[i + 1] if i + 1 < count else ''))
            for sensor in (*CAMERAS, 'LIDAR_TOP'):
                for sweep in range(sweeps + 1):
                    key, stamp = f'{token}-{sensor}-{sweep}', start + i * STEP - sweep * STEP // (sweeps + 1)
                    file = f'samples/{sensor}/{key}.jpg'
                    tables['sample_data'].append(dict(
                        token=key, sample_token=token, ego_pose_token=key, calibrated_sensor_token=sensor, prev='',
                        next='', timestamp=stamp, is_key_frame=not sweep, filename=file, fileformat='jpg', height=900,
                        width=1600))
                    tables['ego_pose'].append(dict(token=key, timestamp=stamp, rotation=[1., 0., 0., 0.],
                                                   translation=[stamp * 8e-6, 0., 0.]))
        for item in range(objects):
            instance, kind = f'{name}-{item:020}', list(CATEGORIES)[rng.integers(len(CATEGORIES))]
            length = min(LENGTH, count)
            first = int(rng.integers(count - length + 1))
            tables['instance'].append(dict(token=instance, category_token=kind))
            position = np.array([(start + first * STEP) * 8e-6, 0, 1]) + rng.uniform(-50, 50, 3) * (1, 1, 0)
            for i in range(length):
                tables['sample_annotation'].append(dict(
                    token=f'{instance}-{i}', sample_token=tokens[first + i], instance_token=instance,
                    attribute_tokens=['moving'] if kind == 'car' else [], translation=(position + [i, 0, 0]).tolist(),
                    size=[2., 4.5, 1.6], rotation=[1., 0., 0., 0.], num_lidar_pts=3, num_radar_pts=0,
                    visibility_token='4', prev=f'{instance}-{i - 1}' if i else '',
                    next=f'{instance}-{i + 1}' if i + 1 < length else ''))
    (folder / VERSION).mkdir(parents=True)
    for name, rows in tables.items():
        with open(folder / VERSION / f'{name}.json', 'w', encoding='utf-8') as file:
            json.dump(rows, file)
    print(', '.join(f'{name} {len(rows)}' for name, rows in tables.items()))


def submission(root: Path, boxes: int) -> Path:
    """A detection file of all frames of val."""
    path = root / f'results_{boxes}.json'
    rng = np.random.default_rng(1)

    def rows(token: str) -> list[dict]:
        positions, scores = rng.uniform(-50, 50, (boxes, 3)).tolist(), rng.uniform(size=boxes).tolist()
        return [dict(sample_token=token, translation=position, size=[2.1, 4.5, 1.6], rotation=[.8, 0., 0., .6],
                     velocity=[1.25, -.5], detection_name='car', detection_score=score,
                     attribute_name='vehicle.moving') for position, score in zip(positions, scores)]

    frames = [frame.token for frames in split_frames('val', str(root)).values() for frame in frames]
    if not path.exists():
        write_results(str(path), ((token, rows(token)) for token in tqdm(frames, desc='made up', unit='frame')))
    return path


@contextlib.contextmanager
def measured(what: str, profile: int = 0) -> Iterator[None]:
    """Prints wall time, CPU time of this process and the peak of the memory; ``profile``: and so many functions."""
    peak, start, cpu, profiler = Peak(.2), time.monotonic(), time.process_time(), cProfile.Profile()
    if profile:
        profiler.enable()
    yield
    peak.look()
    profiler.disable()
    print(f'{what}: {time.monotonic() - start:.1f} s, CPU {time.process_time() - cpu:.1f} s, peak memory '
          f'{peak.mib:.0f} MiB', flush=True)
    if profile:
        pstats.Stats(profiler).sort_stats('cumulative').print_stats(profile)


def load(root: Path, workers: int) -> None:
    with measured('info file read and checked'):
        dataset = NuScenesCameraDataset('nuscenes_infos_train.pkl', str(root))
    with measured(f'all {len(dataset)} frames by {workers} workers'):
        for _ in tqdm(DataLoader(dataset, num_workers=workers, collate_fn=len, batch_size=2), unit='batch'):
            pass


def compare(root: Path, version: str, folder: Path) -> None:
    """mmdet3d's converter and ours on one set, as their tools call them. LiDAR files are made up where missing."""
    converters = Path(mmdet3d.__file__).parent / '.mim/tools'
    sys.path.insert(0, str(converters))  # it imports its neighbours as tools.dataset_converters
    sys.modules.pop('tools', None)
    spec = importlib.util.spec_from_file_location('tools', None)
    package = importlib.util.module_from_spec(spec) if spec else type(sys)('tools')
    package.__path__ = [str(converters)]
    sys.modules['tools'] = package
    from tools.dataset_converters.nuscenes_converter import create_nuscenes_infos
    from tools.dataset_converters.update_infos_to_v2 import update_pkl_infos
    copy = folder / 'data/nuscenes'
    shutil.copytree(root / version, copy / version)
    if (root / 'maps').is_dir():
        shutil.copytree(root / 'maps', copy / 'maps')
    for row in json.loads((copy / version / 'sample_data.json').read_text()):  # mmdet3d asks whether they are there
        path = copy / row['filename']
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with measured('georope: tools/create_data.py'):
        create_infos(copy, version, folder / 'ours')
    before = os.getcwd()
    os.chdir(folder)  # its second step opens ./data/nuscenes
    try:
        with measured('mmdet3d: its tools/create_data.py without the database of LiDAR points'):
            create_nuscenes_infos('data/nuscenes', 'nuscenes', version=version, max_sweeps=0)
            for split in ('train', 'val'):
                path = Path(f'data/nuscenes/nuscenes_infos_{split}.pkl')
                if pickle.loads(path.read_bytes())['infos']:  # it stops at a split without frames
                    update_pkl_infos('nuscenes', out_dir='data/nuscenes', pkl_path=str(path))
    finally:
        os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('measure', choices=['create', 'load', 'validate', 'compare'])
    parser.add_argument('--frames', type=int, default=FRAMES)
    parser.add_argument('--sweeps', type=int, default=0, help='records between two key frames, per sensor (nuScenes: '
                        '10 on average)')
    parser.add_argument('--boxes', type=int, default=300, help='per frame of the submission')
    parser.add_argument('--workers', type=int, default=8)
    parser.add_argument('--profile', type=int, default=0, metavar='N', help='also list N functions (slower)')
    parser.add_argument('--root', type=Path, help='set of compare')
    parser.add_argument('--version', default='v1.0-mini', help='of that set')
    args = parser.parse_args()
    if args.measure == 'compare':
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            compare(args.root, args.version, Path(folder))
        return
    root = args.folder / f'{args.frames}x{args.sweeps}'
    if not root.exists():
        make(root, args.frames, round(BOXES * args.frames / FRAMES), args.sweeps)
    if args.measure == 'create':
        with measured(f'create_data, {args.frames} frames', args.profile):
            create_infos(root, VERSION)
    elif args.measure == 'load':
        load(root, args.workers)
    else:
        path, scenes = submission(root, args.boxes), split_frames('val', str(root))
        with measured(f'check_submission, {path.stat().st_size / 1e6:.0f} MB', args.profile):
            print(f'{len(check_submission(str(path), "detection", scenes))} violations')


if __name__ == '__main__':
    main()
