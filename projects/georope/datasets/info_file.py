"""Info files: reading with a clear refusal, writing beside and renaming, the order of cameras, scenes and frames."""
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Union

from georope.files import written_beside

# The order of nuScenes in mmdet3d's info files; other cameras follow in the file's order.
CAMERAS = ('CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK', 'CAM_BACK_LEFT', 'CAM_BACK_RIGHT')

CREATE_COMMAND = 'python tools/create_data.py --root-path <data root> --version <v1.0-mini|v1.0-trainval|v1.0-test>'


def camera_order(names: Iterable[str]) -> list[str]:
    """``names`` with the six of :data:`CAMERAS` first, in that order, and the others after them as they come."""
    names = list(names)
    return [name for name in CAMERAS if name in names] + [name for name in names if name not in CAMERAS]


def load_infos(path: Union[str, Path]) -> dict:
    """Read an mmdet3d v2 info file.

    Returns:
        dict: ``metainfo`` and ``data_list``.

    Raises:
        FileNotFoundError: No such file.
        ValueError: The file is not of format v2; the message says how to make one.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'Info file {path} does not exist. Make it with `{CREATE_COMMAND}`.')
    with open(path, 'rb') as file:
        content = pickle.load(file)
    if not isinstance(content, dict) or not {'metainfo', 'data_list'} <= set(content):
        found = f'the keys {sorted(content)}' if isinstance(content, dict) else f'a {type(content).__name__}'
        raise ValueError(
            f'Info file {path} holds {found}, not metainfo and data_list: it was written for mmdet3d < 1.1, whose '
            f'boxes have other conventions. Make a new one with `{CREATE_COMMAND}`.')
    if 'info_version' not in content['metainfo']:
        raise ValueError(
            f'Info file {path} has no metainfo.info_version, so its box conventions are unknown. Make a new one with '
            f'`{CREATE_COMMAND}`.')
    return content


def save_infos(infos: dict, path: Union[str, Path]) -> Path:
    """Write an info file, whole or not at all."""
    with written_beside(path) as beside, open(beside, 'wb') as file:
        pickle.dump(infos, file, protocol=4)
    return Path(path)


def in_scene_order(data_list: list[dict]) -> list[dict]:
    """Entries ordered by (scene, timestamp); scenes by their first timestamp, then token.

    Entries without ``scene_token`` count as one scene, that is: they are ordered by time.
    """
    starts: dict[str, float] = {}
    for entry in data_list:
        scene = entry.get('scene_token', '')
        starts[scene] = min(starts.get(scene, float('inf')), entry['timestamp'])
    return sorted(data_list, key=lambda entry: (
        starts[entry.get('scene_token', '')], entry.get('scene_token', ''), entry['timestamp'], entry['token']))
