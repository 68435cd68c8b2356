"""Info files: checked reading, atomic writing, and the order of cameras, scenes and frames."""
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

from georope.errors import InputError, MissingInput, UnreadableInput
from georope.files import no_content, written_beside
from georope.messages import some

# The order of nuScenes in mmdet3d's info files; other cameras follow in the file's order.
CAMERAS = ('CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK', 'CAM_BACK_LEFT', 'CAM_BACK_RIGHT')

CREATE_COMMAND = 'python tools/create_data.py --root-path <data root> --version <v1.0-mini|v1.0-trainval|v1.0-test>'


def camera_order(names: Iterable[str]) -> list[str]:
    """``names`` with the six of :data:`CAMERAS` first, in that order; the others follow in their own order."""
    names = list(names)
    return [name for name in CAMERAS if name in names] + [name for name in names if name not in CAMERAS]


def load_infos(path: Union[str, Path]) -> dict:
    """Read an mmdet3d v2 info file.

    Returns:
        dict: ``metainfo`` and ``data_list``, whose entries have a ``token``.

    Raises:
        MissingInput: No such file.
        UnreadableInput: The file is empty, a Git LFS pointer, cut off or no pickle.
        InputError: The file is not of format v2, or not of nuScenes; the message says what it is and what to do.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingInput(f'Info file {path} does not exist. Make it with `{CREATE_COMMAND}`.')
    content = _unpickle(path)
    if not isinstance(content, dict) or not {'metainfo', 'data_list'} <= set(content):
        raise InputError(f'Info file {path} holds {_kind(content)}. An info file has metainfo and data_list: make one '
                         f'with `{CREATE_COMMAND}`.')
    metainfo, data_list = content['metainfo'], content['data_list']
    if not (isinstance(metainfo, dict) and isinstance(data_list, list)):
        raise InputError(f'Info file {path}: metainfo must be a dict and data_list a list, not '
                         f'{type(metainfo).__name__} and {type(data_list).__name__}. Make a new one with '
                         f'`{CREATE_COMMAND}`.')
    if 'info_version' not in metainfo:
        raise InputError(
            f'Info file {path} has no metainfo.info_version, so its box conventions are unknown. Make a new one with '
            f'`{CREATE_COMMAND}`.')
    for index, entry in enumerate(data_list):
        if not (isinstance(entry, dict) and isinstance(entry.get('token'), str)):
            raise InputError(
                f'{path}: data_list[{index}]: token is missing: it is the nuScenes sample token of each frame. This is '
                f'an info file of {metainfo.get("dataset", "an unknown dataset")!s}; for nuScenes, or a set in its '
                f'format, make one with `{CREATE_COMMAND}`.')
    return content


def load_together(paths: Sequence[Union[str, Path]]) -> tuple[dict, dict[str, str]]:
    """Read several info files as one.

    Returns:
        dict: ``metainfo`` of the first, ``data_list`` of all.
        dict: {sample token: file}.

    Raises:
        InputError: as :func:`load_infos`; or they have other labels, or a frame in common.
    """
    together, files = None, {}
    for path in map(str, paths):
        infos = load_infos(path)
        together = together or dict(metainfo=infos['metainfo'], data_list=[])
        theirs, ours = (dict(sorted(each['metainfo'].get('categories', {}).items())) for each in (infos, together))
        if {name: label for name, label in theirs.items() if label >= 0} != {
                name: label for name, label in ours.items() if label >= 0}:
            raise InputError(f'{path} and {paths[0]} have other labels (metainfo.categories): {theirs} and {ours}.')
        # What one file leaves out as a category without a class, the other need not have.
        together['metainfo'] = dict(together['metainfo'], categories={**theirs, **ours})
        twice = [entry['token'] for entry in infos['data_list'] if entry['token'] in files]
        if twice:
            raise InputError(f'{path}: {len(twice)} samples are in {files[twice[0]]} too: {some(twice, 3)}.')
        together['data_list'] += infos['data_list']
        files.update({entry['token']: path for entry in infos['data_list']})
    return together, files


def _unpickle(path: Path) -> Any:
    try:
        reason = no_content(path)
        if reason is None:
            with open(path, 'rb') as file:
                return pickle.load(file)
    except OSError as error:
        reason = f'cannot be read: {error.strerror}'
    except (EOFError, pickle.UnpicklingError) as error:
        cut = isinstance(error, EOFError) or 'truncated' in str(error)
        reason = (f'{"is cut off" if cut else "is no pickle"} ({error}): copy it again, or make it with '
                  f'`{CREATE_COMMAND}`')
    except Exception as error:  # unpickling runs what the file says: anything may come out of one that is damaged
        reason = (f'cannot be unpickled ({type(error).__name__}: {error}): it is damaged, no info file, or needs that '
                  f'module; make it with `{CREATE_COMMAND}`')
    raise UnreadableInput(f'Info file {path} {reason}.')


def _kind(content: Any) -> str:
    """What a pickle contains that is not an info file, in words."""
    if isinstance(content, dict) and 'infos' in content:
        return f'the keys {sorted(content)}: it was written for mmdet3d < 1.1, whose boxes have other conventions'
    first = content[0] if isinstance(content, (list, tuple)) and content else content
    if isinstance(first, dict) and any('pred' in str(key) or 'boxes_3d' in str(key) for key in first):
        return 'predictions: it is a result file'
    if isinstance(content, dict):
        return f'the keys {some(sorted(map(str, content)))}'
    return f'a {type(content).__name__}'


def required(record: dict, key: str, where: str) -> Any:
    """A value of an entry of an info file.

    Raises:
        InputError: the entry lacks it; the message begins with ``where``.
    """
    if not isinstance(record, dict) or key not in record:
        raise InputError(f'{where}{key} is missing. Make the info file with `{CREATE_COMMAND}`.')
    return record[key]


def save_infos(infos: dict, path: Union[str, Path]) -> Path:
    """Write an info file atomically."""
    with written_beside(path) as beside, open(beside, 'wb') as file:
        pickle.dump(infos, file, protocol=4)
    return Path(path)


def in_scene_order(data_list: list[dict]) -> list[dict]:
    """Entries ordered by (scene, timestamp); scenes by their first timestamp, then token.

    Entries without ``scene_token`` count as one scene: they are ordered by time.
    """
    starts: dict[str, float] = {}
    for entry in data_list:
        scene = entry.get('scene_token', '')
        starts[scene] = min(starts.get(scene, float('inf')), entry['timestamp'])
    return sorted(data_list, key=lambda entry: (
        starts[entry.get('scene_token', '')], entry.get('scene_token', ''), entry['timestamp'], entry['token']))
