"""What the nuScenes tables must hold, as one declarative schema; :mod:`.table_check` compares a data set with it.

The schema has only those fields that are read. A kind checks the values of a field in all records at once, so that a
million annotations take seconds.
"""
from __future__ import annotations

from collections.abc import Callable, Set
from itertools import chain
from typing import NamedTuple

import numpy as np

_UNIT = 1e-2  # of a quaternion's norm


class Kind(NamedTuple):
    """The content of a field: in words, and as a test of all values of a column (TypeError or ValueError: not so)."""

    words: str
    holds: Callable[[list], bool]
    optional: bool = False


class Reference(NamedTuple):
    """A token of a record of ``table``, which belongs to the same ``owner``."""

    table: str
    end: bool = False  # '' is allowed: the end of a chain
    several: bool = False  # a list of tokens
    owner: tuple[str, str] | None = None  # (field here, field there) that must be equal
    optional: bool = False

    def kind(self, tokens: Set[str]) -> Kind:
        """The kind of fields that refer to one of ``tokens``."""
        known = tokens | {''} if self.end else tokens
        words = f'a token of {self.table}.json' + (" or ''" if self.end else '')
        if self.several:
            return Kind(f'a list: each {words}', lambda values: _types(list)(values) and known.issuperset(
                chain.from_iterable(values)), self.optional)
        return Kind(words, known.issuperset, self.optional)


def maybe(field: Kind | Reference) -> Kind | Reference:
    """The same for a field that may be missing."""
    return field._replace(optional=True)


def _types(*types: type) -> Callable[[list], bool]:
    return lambda values: set(map(type, values)) <= set(types)


def _numbers(values: list) -> bool:
    return _types(int, float)(values) and bool(np.isfinite(np.array(values, dtype=float)).all())


def _vectors(length: int, more: Callable[[np.ndarray], bool] = lambda array: True) -> Callable[[list], bool]:
    def holds(values: list) -> bool:
        if not (_types(list)(values) and set(map(len, values)) <= {length}):
            return False
        flat = list(chain.from_iterable(values))
        return _numbers(flat) and bool(more(np.array(flat, dtype=float).reshape(-1, length)))
    return holds


def _intrinsics(values: list) -> bool:
    if not (_vectors(3)(list(chain.from_iterable(values))) and set(map(len, values)) <= {3}):
        return False
    return bool((np.abs(np.linalg.det(np.array(values, dtype=float).reshape(-1, 3, 3))) > 1e-9).all())


TEXT = Kind('a string', _types(str))
NAME = Kind('a string, not empty', lambda values: _types(str)(values) and all(values))
NUMBER = Kind('a finite number', _numbers)
COUNT = Kind('a whole number', _types(int))
PIXELS = Kind('a whole number above 0', lambda values: _types(int)(values) and min(values, default=1) > 0)
FLAG = Kind('true or false', lambda values: _types(bool, int)(values) and set(values) <= {0, 1})
POSITION = Kind('x, y, z in metres: a list of 3 finite numbers', _vectors(3))
TURN = Kind('a quaternion w, x, y, z of length 1: a list of 4 finite numbers',
            _vectors(4, lambda array: (np.abs(np.linalg.norm(array, axis=1) - 1) < _UNIT).all()))
SIZE = Kind('width, length, height in metres: a list of 3 finite numbers above 0',
            _vectors(3, lambda array: (array > 0).all()))
INTRINSICS = Kind('a camera matrix: 3 lists of 3 finite numbers, not singular', _intrinsics)

_OF_SCENE = Reference('sample', owner=('token', 'scene_token'))
_SAME_SCENE = Reference('sample', end=True, owner=('scene_token', 'scene_token'))
_OF_INSTANCE = Reference('sample_annotation', owner=('token', 'instance_token'))
_SAME_INSTANCE = Reference('sample_annotation', end=True, owner=('instance_token', 'instance_token'))

TABLES = {
    'sensor': dict(channel=NAME, modality=NAME),
    'calibrated_sensor': dict(sensor_token=Reference('sensor'), translation=POSITION, rotation=TURN),
    'ego_pose': dict(translation=POSITION, rotation=TURN),
    'scene': dict(name=NAME, nbr_samples=COUNT, first_sample_token=_OF_SCENE, last_sample_token=maybe(_OF_SCENE)),
    'sample': dict(timestamp=NUMBER, scene_token=Reference('scene'), prev=_SAME_SCENE, next=_SAME_SCENE),
    'sample_data': dict(is_key_frame=FLAG, timestamp=NUMBER, filename=TEXT, sample_token=Reference('sample'),
                        ego_pose_token=Reference('ego_pose'), calibrated_sensor_token=Reference('calibrated_sensor')),
    'category': dict(name=NAME),
    'attribute': dict(name=NAME),
    'instance': dict(category_token=Reference('category'), first_annotation_token=maybe(_OF_INSTANCE),
                     last_annotation_token=maybe(_OF_INSTANCE)),
    'sample_annotation': dict(translation=POSITION, rotation=TURN, size=SIZE, sample_token=Reference('sample'),
                              instance_token=Reference('instance'),
                              attribute_tokens=Reference('attribute', several=True), prev=_SAME_INSTANCE,
                              next=_SAME_INSTANCE, num_lidar_pts=maybe(COUNT), num_radar_pts=maybe(COUNT)),
}
# What only a camera needs of its calibration and of its key frames.
CAMERA = {'calibrated_sensor': dict(camera_intrinsic=INTRINSICS),
          'sample_data': dict(filename=NAME, width=PIXELS, height=PIXELS)}
# Names that tell records apart, besides the tokens.
UNIQUE = {'scene': 'name', 'category': 'name'}
# All that scenes, frames and splits are made of.
SCENES = {'scene': dict(name=NAME), 'sample': dict(timestamp=NUMBER, scene_token=Reference('scene'))}
