"""The 13 tables of nuScenes v1.0: rows with deterministic tokens, kept until all scenes are drawn."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from .catalog import ATTRIBUTES, CATEGORIES
from .rig import CAMERA_CHANNELS, LIDAR_CHANNEL, Sensor

VERSION = 'v1.0-mini'
TABLES = ('attribute', 'calibrated_sensor', 'category', 'ego_pose', 'instance', 'log', 'map', 'sample',
          'sample_annotation', 'sample_data', 'scene', 'sensor', 'visibility')
VISIBILITY = (('1', 'v0-40', 0.4), ('2', 'v40-60', 0.6), ('3', 'v60-80', 0.8), ('4', 'v80-100', 1.0))


def visibility_token(visible: int, alone: int) -> str:
    """Level of the share of an object's pixels that is seen; the lowest level where it fills no pixel at all."""
    share = visible / alone if alone else 0.0
    return next((token for token, _, limit in VISIBILITY if share <= limit), '4')


def quaternion(rotation: np.ndarray) -> list[float]:
    """(3, 3) -> [w, x, y, z], unit length, w >= 0."""
    x, y, z, w = Rotation.from_matrix(rotation).as_quat(canonical=True)
    return [float(w), float(x), float(y), float(z)]


def yaw_quaternion(yaw: float) -> list[float]:
    return [float(np.cos(yaw / 2)), 0.0, 0.0, float(np.sin(yaw / 2))]


class Tables:
    """Rows of all tables. Tokens are digests of the seed and of what the row stands for: equal in every run."""

    def __init__(self, seed: int, num_cameras: int):
        self._seed = seed
        self.rows: dict[str, list[dict]] = {name: [] for name in TABLES}
        for name in CATEGORIES:
            self.add('category', name, name=name, description='')
        for name in ATTRIBUTES:
            self.add('attribute', name, name=name, description='')
        for token, level, _ in VISIBILITY:
            self.rows['visibility'].append(dict(token=token, level=level, description=''))
        for channel in (LIDAR_CHANNEL,) + CAMERA_CHANNELS[:num_cameras]:
            self.add('sensor', channel, channel=channel,
                     modality='lidar' if channel == LIDAR_CHANNEL else 'camera')

    def token(self, table: str, *key) -> str:
        """32 hexadecimal digits, from the seed, the table and the key."""
        return hashlib.md5('/'.join(map(str, (self._seed, table, *key))).encode()).hexdigest()

    def add(self, table: str, *key, **row) -> str:
        """Append a row; its token comes from ``key``."""
        token = self.token(table, *key)
        self.rows[table].append(dict(token=token, **row))
        return token

    def add_sensor(self, scene: str, sensor: Sensor) -> str:
        intrinsic = [] if sensor.intrinsic is None else sensor.intrinsic.tolist()
        return self.add('calibrated_sensor', scene, sensor.channel,
                        sensor_token=self.token('sensor', sensor.channel), translation=sensor.translation.tolist(),
                        rotation=quaternion(sensor.rotation), camera_intrinsic=intrinsic)

    def extend(self, other: dict[str, list[dict]]):
        for name, rows in other.items():
            self.rows[name].extend(rows)

    def write(self, folder: Path):
        folder.mkdir(parents=True)
        for name, rows in self.rows.items():
            (folder / f'{name}.json').write_text(json.dumps(rows, indent=0, allow_nan=False))


def chain(rows: list[dict]):
    """Fill prev and next of rows that follow each other."""
    for before, after in zip([None, *rows], [*rows, None]):
        if before is not None:
            before['next'] = after['token'] if after else ''
        if after is not None:
            after['prev'] = before['token'] if before else ''
