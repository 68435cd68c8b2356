"""Suspicious content of a data set whose tables are valid: units of time, frames without cameras, missing images."""
from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from georope.errors import InputError
from georope.messages import some

from .tables import REFERENCE_SENSOR, NuScenesTables

STEP = (.005, 30.)  # s between key frames: outside, timestamps are in another unit (choice)
DELAY = 10.  # s between a frame and its pictures, likewise
_UNITS = {'seconds': 1e6, 'milliseconds': 1e3, 'nanoseconds': 1e-3}  # microseconds


def check_times(tables: NuScenesTables) -> list[str]:
    """Check that timestamps can be microseconds, by the time between key frames and from a frame to its images.

    Returns:
        What is suspicious, with the numbers found and the likely unit.

    Raises:
        InputError: it is so in all scenes.
    """
    notes = []
    steps = {}  # median of a scene, s
    for scene in tables.scene:
        times = [sample['timestamp'] for sample in tables.samples_of(scene)]
        if len(times) > 1:
            steps[scene['name']] = float(np.median(np.diff(times))) / 1e6
    odd = [name for name, step in steps.items() if not STEP[0] <= step <= STEP[1]]
    if odd:
        step = steps[odd[0]]
        units = [unit for unit, factor in _UNITS.items() if .02 <= step * factor <= 20]
        likely = f'they look like {units[0]}' if units else 'no usual unit fits'
        notes.append((len(odd) == len(steps), f'{tables.table_root}/sample.json: timestamp: in {len(odd)} of '
                      f'{len(steps)} scenes key frames are {step:g} s apart, e.g. in {odd[0]}. Timestamps are '
                      f'microseconds; {likely}: convert them in sample.json, sample_data.json and ego_pose.json.'))
    times = {sample['token']: sample['timestamp'] for sample in tables.sample}
    delays = {row['token']: (row['timestamp'] - times[row['sample_token']]) / 1e6
              for row in tables.sample_data if row['sensor_modality'] == 'camera'}
    late = [token for token, delay in delays.items() if abs(delay) > DELAY]
    if late:
        notes.append((len(late) == len(delays), f'{tables.table_root}/sample_data.json: timestamp: {len(late)} of '
                      f'{len(delays)} pictures were taken {delays[late[0]]:g} s from their frame, e.g. {late[0]}. '
                      'Both timestamps are microseconds of one clock: convert them.'))
    if any(everywhere for everywhere, _ in notes):
        raise InputError('\n'.join(note for _, note in notes))
    return [note for _, note in notes]


def key_frame_cameras(tables: NuScenesTables, sample: dict) -> dict[str, dict]:
    """The records of ``sample_data`` of a sample's cameras."""
    records = {name: tables.get('sample_data', token) for name, token in sample['data'].items()}
    return {name: record for name, record in records.items() if record['sensor_modality'] == 'camera'}


def whole_frames(tables: NuScenesTables, samples: Iterable[dict]) -> tuple[set, list[str]]:
    """Sample tokens without any camera, which no info file can hold, and notes about samples that lack some.

    Raises:
        InputError: no sample has a camera, or there are some with cameras and without the reference sensor.
    """
    cameras = {sample['token']: key_frame_cameras(tables, sample) for sample in samples}
    blind = {token for token, names in cameras.items() if not names}
    if len(blind) == len(cameras):
        raise InputError(f'{tables.table_root}/sample_data.json: none of the {len(cameras)} frames has a key frame of '
                         'a camera (sensor.json: modality "camera").')
    no_reference = [token for token in cameras if token not in blind
                    and REFERENCE_SENSOR not in tables.get('sample', token)['data']]
    if no_reference:
        raise InputError(
            f'{tables.table_root}/sample_data.json: {len(no_reference)} of {len(cameras)} samples have no '
            f'{REFERENCE_SENSOR} record, which defines the frame of the boxes and the time of the frame (its file is '
            f'not needed): {some(no_reference, 10)}. Add them, or take {REFERENCE_SENSOR} out of sensor.json.')
    notes = []
    if blind:
        notes.append(f'{len(blind)} of {len(cameras)} frames have no camera and are left out: '
                     f'{some(sorted(blind), 10)}')
    rig = {name for names in cameras.values() for name in names}
    lack = {token: rig - names.keys() for token, names in cameras.items() if token not in blind and rig - names.keys()}
    if lack:
        counts = Counter(name for names in lack.values() for name in sorted(names))
        notes.append(f'{len(lack)} of {len(cameras)} frames lack cameras ('
                     + ', '.join(f'{name} {count} times' for name, count in sorted(counts.items()))
                     + f'): {some(list(lack), 10)}. They are in the info file; what becomes of them is said by the '
                     'dataset in the config')
    return blind, notes


class Images:
    """Which files exist; each folder is listed once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._folders: dict[str, set] = {}

    def __contains__(self, filename: str) -> bool:
        folder, name = os.path.split(os.path.join(self.root, filename))
        if folder not in self._folders:
            self._folders[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        return name in self._folders[folder]


def missing_images(tables: NuScenesTables, samples: Iterable[dict]) -> dict[str, list[str]]:
    """Images of key frames that are not below the root, by the token of their scene."""
    images, missing = Images(tables.dataroot), defaultdict(list)
    for sample in samples:
        missing[sample['scene_token']] += _not_in(images, key_frame_cameras(tables, sample).values())
    return {scene: names for scene, names in missing.items() if names}


def _not_in(images: Images, records: Iterable[dict]) -> Iterator[str]:
    return (record['filename'] for record in records if record['filename'] not in images)
