"""Scenes and their frames, from ``scene.json`` and ``sample.json`` alone: no other table is needed."""
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from georope.datasets.schema import SCENES
from georope.datasets.splits import SPLIT_VERSIONS, splits_of
from georope.datasets.table_check import check_tables
from georope.errors import InputError, MissingInput
from georope.files import read_json


class Frame(NamedTuple):
    token: str  # of the sample
    timestamp: int  # microseconds


def read_scenes(version: str, data_root: str) -> dict[str, list[Frame]]:
    """The frames of each scene, by its name, in order of time.

    Raises:
        MissingInput: ``scene.json`` or ``sample.json`` is not in the folder of the version.
        InputError: they cannot be read, two scenes have one name, or a sample is of no scene.
    """
    folder, tables = os.path.join(os.path.expanduser(data_root), version), {}
    for name in SCENES:
        path = os.path.join(folder, f'{name}.json')
        if not os.path.isfile(path):
            raise MissingInput(f'no nuScenes table {path}: data root and version must name a folder of tables')
        tables[name] = read_json(path)
    check_tables(folder, tables, SCENES)
    names = {scene['token']: scene['name'] for scene in tables['scene']}
    scenes = {name: [] for name in names.values()}
    for sample in sorted(tables['sample'], key=lambda sample: (sample['timestamp'], sample['token'])):
        scenes[names[sample['scene_token']]].append(Frame(sample['token'], sample['timestamp']))
    return scenes


def scenes_of(version: str, data_root: str, tokens: Sequence[str]) -> dict[str, list[Frame]]:
    """:func:`read_scenes`, only the given frames and the scenes that have some of them.

    Raises:
        InputError: frames are unknown to these tables.
    """
    found = part_of(read_scenes(version, data_root), tokens)
    unknown = sorted(set(tokens) - {frame.token for frames in found.values() for frame in frames})
    if unknown:
        raise InputError(f'{len(unknown)} of {len(set(tokens))} frames are not in the tables '
                         f'{os.path.join(data_root, version)}, e.g. {", ".join(unknown[:3])}')
    return found


def part_of(scenes: Mapping[str, Sequence[Frame]], tokens: Sequence[str]) -> dict[str, list[Frame]]:
    """Only the given frames, and the scenes that have some of them."""
    wanted = set(tokens)
    chosen = {name: [frame for frame in frames if frame.token in wanted] for name, frames in scenes.items()}
    return {name: frames for name, frames in chosen.items() if frames}


def split_frames(split: str, data_root: str, version: Optional[str] = None) -> dict[str, list[Frame]]:
    """The scenes and frames of a split.

    Args:
        split: an official name, or one of ``splits.json``.
        data_root: root folder of the tables.
        version: of the tables; needed for a split of ``splits.json``.

    Raises:
        InputError: no such split, or the tables have none of its scenes.
    """
    version = version or SPLIT_VERSIONS.get(split)
    if version is None:
        raise InputError(f'split {split!r} is none of {", ".join(SPLIT_VERSIONS)}: for one of splits.json say the '
                         'version too')
    scenes, splits = read_scenes(version, data_root), splits_of(version, data_root)
    if split not in splits:
        raise InputError(f'{version} has no split {split!r}, but {", ".join(splits) or "none"}')
    found = {name: frames for name, frames in scenes.items() if name in splits[split]}
    if not found:
        raise InputError(f'{os.path.join(data_root, version)} has none of the {len(splits[split])} scenes of {split}')
    return found
