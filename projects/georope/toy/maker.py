"""Makes a whole toy set: options, target folder, scenes, tables, map."""
from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from .options import ToyOptions
from .recorder import Recorder
from .rig import CAMERA_CHANNELS, LIDAR_CHANNEL
from .tables import VERSION, Tables
from .world import Scene, build_scene

OPTIONS_FILE = 'toy_options.json'
_MAP_PIXEL = 0.1   # m, the devkit's map resolution; the map's lower left corner is the origin
_MAP_SIZE = 10000  # pixels: 1 km


def make_toy_nuscenes(out: str | os.PathLike, *, scenes: Sequence[int] = (8, 2), samples_per_scene: int = 40,
                      image_size: Sequence[int] = (225, 400), seed: int = 0, num_cameras: int = 6,
                      edge_cases: Sequence[str] = (), overwrite: bool = False, progress: bool = True) -> Path:
    """Write a synthetic world as genuine nuScenes v1.0-mini files. Deterministic: same options, same bytes.

    Args:
        out: data root to make. An equal, complete set there is kept; a folder that is no toy set is never touched.
        scenes: number of training and of validation scenes, at most (8, 2): the names in the devkit's mini_train
            and mini_val.
        samples_per_scene: key frames per scene, 0.5 s apart.
        image_size: (height, width) in pixels; the field of view is that of 900 x 1600 at any size.
        seed: of everything random, tokens included.
        num_cameras: 1 to 12, in the order of ``georope.toy.rig.CAMERA_CHANNELS``: nuScenes' six, then CAM_EXTRA_0, ...
        edge_cases: names from ``georope.toy.EDGE_CASES``.
        overwrite: replace a toy set made with other options.
        progress: show a progress bar on stderr.

    Returns:
        The data root.

    Raises:
        ValueError: an option is out of range.
        FileExistsError: ``out`` holds something else.
    """
    options = ToyOptions(tuple(scenes), samples_per_scene, tuple(image_size), seed, num_cameras, tuple(edge_cases))
    out = Path(out).resolve()  # a link to a folder stays a link
    if _is_made(out, options, overwrite):
        if progress:
            print(f'{out} holds this toy set already: kept', file=sys.stderr)
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f'.{out.name}-', dir=out.parent))
    try:
        _write_set(work / 'new', options, progress)
        if out.exists():
            os.replace(out, work / 'old')
        os.replace(work / 'new', out)
    finally:
        shutil.rmtree(work)
    return out


def _is_made(out: Path, options: ToyOptions, overwrite: bool) -> bool:
    """Whether the set exists already; an error if something else is at its path."""
    if out.is_dir() and not any(out.iterdir()) or not out.exists():
        return False
    if not (out / OPTIONS_FILE).is_file():
        raise FileExistsError(f'{out} exists and is not a toy set (it has no {OPTIONS_FILE}): choose another folder')
    if options.matches(out / OPTIONS_FILE):
        return True
    if not overwrite:
        raise FileExistsError(f'{out} holds a toy set made with other options (see its {OPTIONS_FILE}): pass '
                              '--overwrite (overwrite=True) to replace it, or choose another folder')
    return False


def _write_set(root: Path, options: ToyOptions, progress: bool):
    for channel in (LIDAR_CHANNEL,) + CAMERA_CHANNELS[:options.num_cameras]:
        (root / 'samples' / channel).mkdir(parents=True)
        (root / 'sweeps' / channel).mkdir(parents=True)
    tables = Tables(options.seed, options.num_cameras)
    built = []
    total = sum(options.num_samples(name) for name in options.scene_names)
    # A log file gets a line every 10 s, a terminal a live bar.
    with tqdm(total=total, desc='toy world', unit='frame', disable=not progress,
              mininterval=0.2 if sys.stderr.isatty() else 10) as bar:
        for name in options.scene_names:
            scene = build_scene(options, name)
            Recorder(scene, tables, root, options.image_size, options.seed).record(on_frame=bar.update)
            built.append(scene)
    _write_map(root, tables, built)
    tables.write(root / VERSION)
    (root / OPTIONS_FILE).write_text(options.to_json())


def _write_map(root: Path, tables: Tables, scenes: list[Scene]):
    """One map of the drivable surface for all logs. Roads outside its square kilometre (far_origin) are not on it."""
    outlines = [(scene.ground.road + scene.origin[:2]) / _MAP_PIXEL for scene in scenes]
    outlines = [o for o in outlines if (o.max(0) > 0).all() and (o.min(0) < _MAP_SIZE).all()]
    size = _MAP_SIZE if outlines else 1
    mask = np.zeros((size, size), np.uint8)  # 8 bits: the devkit compares with 255
    for outline in outlines:
        outline[:, 1] = size - outline[:, 1]  # the image's rows run southward
        cv2.fillPoly(mask, [np.round(outline).astype(np.int32)], 255)
    (root / 'maps').mkdir()
    token = tables.token('map', 'all')
    name = f'maps/{token}.png'
    if not cv2.imwrite(str(root / name), mask):
        raise OSError(f'cannot write {root / name}')
    tables.add('map', 'all', category='semantic_prior', filename=name,
               log_tokens=[row['token'] for row in tables.rows['log']])
