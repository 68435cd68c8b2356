"""Frames without info file, for inference only: your own images with a calibration file, or a nuScenes folder,
including the images between its key frames."""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from georope.errors import InputError
from georope.files import read_json

from .calibration import as_4x4, as_intrinsics, as_pose
from .converter import frame_info
from .tables import NuScenesTables, pose_matrix

MAX_GAP = 0.1  # s between the images of a frame that belongs to no sample; nuScenes' cameras have 12 Hz


@dataclass
class LooseFrame:
    """What a detector needs to know about a frame.

    Attributes:
        token: its name.
        images: {camera: path}.
        cam2img, lidar2cam: (N, 4, 4) in the order of ``images``, or None, and then
        lidar2img: (N, 4, 4).
        lidar2global: (4, 4), or None where it is unknown.
        timestamp: seconds, or None where it is unknown.
        scene: name of its scene.
        key_frame: whether it is one of those that models are trained on.
    """

    token: str
    images: dict[str, str]
    cam2img: np.ndarray | None = None
    lidar2cam: np.ndarray | None = None
    lidar2img: np.ndarray | None = None
    lidar2global: np.ndarray | None = None
    timestamp: float | None = None
    scene: str = ''
    key_frame: bool = True

    @property
    def projection(self) -> np.ndarray:
        """``lidar2img`` (N, 4, 4)."""
        return self.cam2img @ self.lidar2cam if self.lidar2img is None else self.lidar2img


def read_frames(path: str | Path) -> list[LooseFrame]:
    """Frames of a YAML or JSON file::

        cameras:                          # the calibration, nested lists
          front: {cam2img: 3x3, lidar2cam: 4x4}
          left: {cam2img: 3x3, lidar2cam: 4x4}   # or lidar2img: 4x4, for all cameras alike
        frames:                           # in order of time
          - images: {front: 000/front.jpg, left: 000/left.jpg}   # beside this file, or absolute
            token: '000'                  # optional: a name; default: the frame's number
            timestamp: 12.5               # s; these three are for models with a memory
            lidar2global: 4x4             # from the LiDAR frame to one fixed in the world
            scene: drive 7                # optional

    Raises:
        FileNotFoundError: there is no such file.
        InputError: something is missing or is no matrix; names the frame or the camera.
    """
    path = Path(path).expanduser()
    content = yaml.safe_load(path.read_text(encoding='utf-8'))  # JSON is YAML
    if not isinstance(content, dict) or not content.get('cameras') or not content.get('frames'):
        raise InputError(f'{path}: "cameras" (the calibration) and "frames" (the images) are needed')
    matrices = {}
    for name, camera in content['cameras'].items():
        where = f'{path}: camera {name}: '
        if set(camera) == {'cam2img', 'lidar2cam'}:
            matrices[name] = dict(cam2img=as_intrinsics(camera['cam2img'], f'{where}cam2img'),
                                  lidar2cam=as_pose(camera['lidar2cam'], f'{where}lidar2cam'))
        elif set(camera) == {'lidar2img'}:
            matrices[name] = dict(lidar2img=as_4x4(camera['lidar2img'], f'{where}lidar2img'))
        else:
            raise InputError(f'{where}give cam2img and lidar2cam, or lidar2img; here are {sorted(camera)}')
    keys = {key for camera in matrices.values() for key in camera}
    if len(keys) == 3:
        raise InputError(f'{path}: some cameras have lidar2img, others cam2img and lidar2cam; give all alike')
    calibration = {key: np.stack([camera[key] for camera in matrices.values()]) for key in keys}
    frames = []
    for number, frame in enumerate(content['frames']):
        token = str(frame.get('token', number))
        where = f'{path}: frame {token}: '
        unknown = set(frame) - {'images', 'token', 'timestamp', 'lidar2global', 'scene'}
        if unknown or set(frame.get('images', ())) != set(matrices):
            raise InputError(f'{where}{f"unknown keys {sorted(unknown)}" if unknown else "images"}: it needs images of '
                             f'the cameras {list(matrices)}, and knows token, timestamp, lidar2global, scene')
        lidar2global = frame.get('lidar2global')
        frames.append(LooseFrame(
            token, {name: str(path.parent / frame['images'][name]) for name in matrices}, **calibration,
            lidar2global=None if lidar2global is None else as_pose(lidar2global, f'{where}lidar2global'),
            timestamp=None if frame.get('timestamp') is None else float(frame['timestamp']),
            scene=str(frame.get('scene', ''))))
    tokens = [frame.token for frame in frames]
    if len(set(tokens)) < len(tokens):
        raise InputError(f'{path}: two frames have the token {max(tokens, key=tokens.count)!r}')
    return frames


def nuscenes_frames(root: str | Path, version: str, scenes: list[str] | None = None,
                    between: bool = False) -> Iterator[LooseFrame]:
    """Frames of a nuScenes folder, scene by scene, in order of time.

    Key frames are those of the info files. Between them, the LiDAR frame of a frame is where the LiDAR was when the
    first camera took its image, and its token is that of this image in ``sample_data``.

    Args:
        root: data root; no LiDAR file is opened.
        version: folder of the tables.
        scenes: names; None for all.
        between: also the images between the key frames (12 Hz); they are in nuScenes' sweeps.

    Raises:
        InputError: a scene is not in the tables, or a camera has no image near one of the first camera's.
    """
    tables = NuScenesTables(root, version)
    found = {scene['name']: scene for scene in tables.scenes_in_order()}
    unknown = sorted(set(scenes or ()) - set(found))
    if unknown:
        raise InputError(f'{tables.table_root} has no scenes {", ".join(unknown)}; it has {", ".join(sorted(found))}')
    records = _other_records(tables, [found[name] for name in scenes or found]) if between else {}
    for name in scenes or found:
        frames = [_key_frame(tables, found[name], i, sample, root)
                  for i, sample in enumerate(tables.samples_of(found[name]))]
        if between:
            frames += _between(tables, records[name], frames[0], root, name)
        yield from sorted(frames, key=lambda frame: frame.timestamp)


def _key_frame(tables: NuScenesTables, scene: dict, number: int, sample: dict, root: str | Path) -> LooseFrame:
    entry = frame_info(tables, scene, number, sample, number)
    where = f'{tables.table_root}: sample {entry["token"]}: '
    lidar2global = np.array(entry['ego2global']) @ np.array(entry['lidar_points']['lidar2ego'])
    return LooseFrame(
        entry['token'], {name: str(Path(root, 'samples', name, image['img_path']))
                         for name, image in entry['images'].items()},
        np.stack([as_intrinsics(image['cam2img'], f'{where}{name}') for name, image in entry['images'].items()]),
        np.stack([as_pose(image['lidar2cam'], f'{where}{name}') for name, image in entry['images'].items()]),
        lidar2global=lidar2global, timestamp=entry['timestamp'], scene=scene['name'])


def _other_records(tables: NuScenesTables, scenes: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """{scene: {channel: records of its images between key frames, in order of time}}."""
    scene_of = {sample['token']: scene['name'] for scene in scenes for sample in tables.samples_of(scene)}
    records = {scene['name']: {} for scene in scenes}
    # The tables above hold what belongs to key frames alone.
    others = [record for record in read_json(Path(tables.table_root, 'sample_data.json'))
              if not record['is_key_frame'] and record['sample_token'] in scene_of]
    wanted = {record['ego_pose_token'] for record in others}
    poses = {pose['token']: pose for pose in read_json(Path(tables.table_root, 'ego_pose.json'))
             if pose['token'] in wanted}
    for record in sorted(others, key=lambda record: record['timestamp']):
        calibration = tables.get('calibrated_sensor', record['calibrated_sensor_token'])
        channel = tables.get('sensor', calibration['sensor_token'])['channel']
        record['ego2global'] = pose_matrix(poses[record['ego_pose_token']])
        records[scene_of[record['sample_token']]].setdefault(channel, []).append(record)
    return records


def _between(tables: NuScenesTables, records: dict[str, list[dict]], key: LooseFrame, root: str | Path,
             scene: str) -> Iterator[LooseFrame]:
    first = next(iter(key.images))
    sample = tables.get('sample', key.token)
    lidar2ego = np.linalg.inv(pose_matrix(tables.get('ego_pose', tables.get('sample_data', sample['data'][
        'LIDAR_TOP'])['ego_pose_token']))) @ key.lidar2global
    if not records.get(first):
        raise InputError(f'{tables.table_root}: scene {scene} has no images of {first} between its key frames')
    times = {name: [record['timestamp'] for record in records.get(name, ())] for name in key.images}
    for record in records[first]:
        time, chosen = record['timestamp'], {}
        for name in key.images:
            index = bisect_left(times[name], time)
            near = min(records.get(name, ())[max(index - 1, 0):index + 1], default=None,
                       key=lambda other: abs(other['timestamp'] - time))
            if near is None or abs(near['timestamp'] - time) > MAX_GAP * 1e6:
                raise InputError(f'{tables.table_root}: scene {scene}: {name} has no image within {MAX_GAP} s of '
                                 f'{record["filename"]}')
            chosen[name] = near
        lidar2global = record['ego2global'] @ lidar2ego
        calibrations = [tables.get('calibrated_sensor', other['calibrated_sensor_token']) for other in chosen.values()]
        yield LooseFrame(
            record['token'], {name: str(Path(root, other['filename'])) for name, other in chosen.items()},
            np.stack([as_intrinsics(other['camera_intrinsic'], name) for name, other in zip(chosen, calibrations)]),
            np.stack([np.linalg.inv(other['ego2global'] @ pose_matrix(calibration)) @ lidar2global
                      for other, calibration in zip(chosen.values(), calibrations)]),
            lidar2global=lidar2global, timestamp=time / 1e6, scene=scene, key_frame=False)
