"""Splits: the official ones and those of a ``splits.json``."""
from __future__ import annotations

import os
from collections.abc import Iterable

from nuscenes.utils.splits import create_splits_scenes

from georope.errors import InputError
from georope.files import read_json

from .table_check import short

# The version whose tables hold the frames of an official split.
SPLIT_VERSIONS = dict(train='v1.0-trainval', val='v1.0-trainval', test='v1.0-test', mini_train='v1.0-mini',
                      mini_val='v1.0-mini')


def splits_of(version: str, data_root: str, scenes: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Names of the scenes in the official splits of a version and in its ``splits.json``, which has priority.

    Args:
        version: folder of the tables under ``data_root``.
        data_root: root folder.
        scenes: names of the scenes in the tables, if ``splits.json`` is to be checked against them.

    Raises:
        InputError: ``splits.json`` is something else, or names a scene that is not in ``scenes``.
    """
    kind = version.rsplit('-', 1)[-1]  # as the devkit tells them: mini, trainval or test, of whichever release
    official = create_splits_scenes()
    splits = {name: official[name] for name, of in SPLIT_VERSIONS.items() if of.endswith(f'-{kind}')}
    path = os.path.join(os.path.expanduser(data_root), version, 'splits.json')
    if not os.path.exists(path):
        return splits
    custom = read_json(path)
    if not isinstance(custom, dict) or not all(
            isinstance(names, list) and all(isinstance(name, str) for name in names) for names in custom.values()):
        raise InputError(f'{path} must be an object {{split: ["scene name", ...]}}, not {short(custom)}.')
    for name, chosen in custom.items():
        unknown = [] if scenes is None else sorted(set(chosen) - set(scenes))
        if unknown:
            raise InputError(f'{path}: split {name} names scenes that are not in the tables: {unknown[:5]}.')
    return {**splits, **custom}
