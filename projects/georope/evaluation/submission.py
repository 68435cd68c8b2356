"""An offline check of everything the nuScenes server checks in a submission, and the zip it takes.

The rules are those of the devkit's loaders and of its eval READMEs; the devkit stops at the first fault with a bare
assertion, this names them all. What comes of a broken rule is told with it: the server refuses the file, or takes it
although it is outside the format, or takes what nobody should send (:data:`REFUSED`, :data:`FORMAT`, :data:`ADVICE`).
"""
import io
import json
import lzma
import math
import os
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from nuscenes.eval.detection.constants import ATTRIBUTE_NAMES, DETECTION_NAMES
from nuscenes.utils.splits import create_splits_scenes
from tqdm import tqdm

from georope.errors import InputError, refuse
from georope.evaluation.results import CAMERA_META, dump_results
from georope.evaluation.scenes import Frame, split_frames
from georope.evaluation.tracker import TRACKING_NAMES
from georope.files import no_content

TASKS = ('detection', 'tracking')
MAX_BOXES = 500  # per sample, both tasks
# nuScenes publishes no limit of the file's size; EvalAI's upload page is said to take 400 MB (choice).
MAX_ZIP_MB = 400.

_VECTORS = dict(translation=3, size=3, rotation=4, velocity=2)
_NAMES = dict(detection=DETECTION_NAMES, tracking=TRACKING_NAMES)
# First part of the attributes of a class. The devkit ignores those of classes without any.
_ATTRIBUTE_OF = {**dict.fromkeys(DETECTION_NAMES, 'vehicle'), 'pedestrian': 'pedestrian', 'bicycle': 'cycle',
                 'motorcycle': 'cycle', 'barrier': '', 'traffic_cone': ''}
# Fields of annotations that the devkit would take from a prediction: boxes with num_pts 0 vanish.
_TRUTH_FIELDS = ('ego_translation', 'num_pts')


# What comes of a broken rule.
REFUSED = 'refused by the server'
FORMAT = 'outside the format, the server takes it'
ADVICE = 'against our advice, the server takes it'


class Violation(NamedTuple):
    """One broken rule."""

    kind: str  # what it is about, e.g. 'rotation'
    message: str
    token: Optional[str] = None  # of the sample; None: the whole file
    index: Optional[int] = None  # of the box in its sample; None: the whole sample
    effect: str = REFUSED

    def __str__(self) -> str:
        where = 'file' if self.token is None else f'sample {ascii(self.token)[1:-1]}'  # of unprintable ones, escapes
        return f'{where}{"" if self.index is None else f", box {self.index}"}: {self.message} ({self.effect})'


class _Repeated(dict):
    """A JSON object that has a key twice, of which python's parser would keep the last in silence."""

    keys_twice: list


def _object(pairs: list) -> dict:
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    content, seen = _Repeated(content), set()
    content.keys_twice = sorted({key for key, _ in pairs if key in seen or seen.add(key)})
    return content


def read_submission(path: str, max_zip_mb: float = MAX_ZIP_MB) -> tuple[Any, list[Violation]]:
    """The content of a JSON file, or of a zip that holds one, and what is wrong with the file as such."""
    found = []
    with open(path, 'rb') as file:
        data = file.read()
    reason = no_content(path)
    if reason:
        return None, [Violation('unreadable', f'{path} {reason}')]
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            megabytes = len(data) / 1e6
            if megabytes > max_zip_mb:
                found.append(Violation('file_size', f'{megabytes:.1f} MB zipped are over the limit of {max_zip_mb:g}',
                                       effect=ADVICE))
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = archive.namelist()
                if len(names) != 1 or not names[0].endswith('.json') or '/' in names[0]:
                    return None, [*found, Violation(
                        'zip', f'a zip must hold one JSON file, in no folder, but this holds {names[:5] or "nothing"}')]
                data = archive.read(names[0])
        return json.loads(data.decode('utf-8'), object_pairs_hook=_object), found
    # RuntimeError: too deep, encrypted, or of an unknown compression. OSError: bzip2.
    except (ValueError, EOFError, RuntimeError, OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        return None, [*found, Violation('unreadable', f'{path} is neither JSON in UTF-8 nor a zip of it: {error}')]


def check_submission(path: str, task: str, scenes: Mapping[str, Sequence[Frame]],
                     max_zip_mb: float = MAX_ZIP_MB) -> list[Violation]:
    """All that is wrong with a submission, with what comes of it.

    Args:
        path: JSON file or zip.
        task: 'detection' or 'tracking'.
        scenes: scenes and frames of the split (``georope.evaluation.scenes.split_frames``).
        max_zip_mb: limit for a zip, in 10^6 bytes.

    Returns:
        The violations, none for a valid file.
    """
    if task not in TASKS:
        raise ValueError(f'task must be one of {", ".join(TASKS)}, not {task!r}')
    content, found = read_submission(path, max_zip_mb)
    if content is not None or not found:
        found += _check_content(content, task, scenes)
    return found


def _check_content(content: Any, task: str, scenes: Mapping[str, Sequence[Frame]]) -> Iterator[Violation]:
    if not isinstance(content, dict) or not isinstance(content.get('results'), dict):
        yield Violation('schema', 'not an object with "meta" and "results", "results" being an object by sample token')
        return
    yield from _twice(content)
    yield from _check_meta(content.get('meta'))
    results = content['results']
    yield from _twice(results)
    scene_of = {frame.token: name for name, frames in scenes.items() for frame in frames}
    for token in sorted(scene_of.keys() - results.keys()):
        yield Violation('missing_sample', 'of the split, but missing; without boxes it needs an empty list', token)
    if not any(results.values()):
        yield Violation('no_boxes', '0 boxes in all samples: the devkit stops with "Invalid box type: None"')
    classes: dict[tuple, str] = {}  # of (scene, tracking id)
    for token, boxes in tqdm(results.items(), desc='checking', unit='sample', disable=None):
        if token not in scene_of:
            yield Violation('foreign_sample', 'not of this split, or not in these tables', token)
        if not isinstance(boxes, list):
            yield Violation('schema', f'its value must be a list of boxes, not {_short(boxes)}', token)
            continue
        if len(boxes) > MAX_BOXES:
            yield Violation('too_many_boxes', f'{len(boxes)} boxes, at most {MAX_BOXES} are allowed', token)
        ids: set[str] = set()
        for index, box in enumerate(boxes):
            found = list(_check_box(box, token, task))
            if task == 'tracking' and isinstance(box, dict):
                found += _check_track(box, scene_of.get(token), ids, classes)
            for kind, message, effect in found:
                yield Violation(kind, message, token, index, effect)


def _check_meta(meta: Any) -> Iterator[Violation]:
    if not isinstance(meta, dict):
        yield Violation('meta', f'"meta" must be an object with the flags {", ".join(CAMERA_META)}, not {_short(meta)}')
        return
    yield from _twice(meta)
    for key in CAMERA_META:
        if not isinstance(meta.get(key), bool):
            yield Violation('meta', f'meta.{key} must be true or false, not {_short(meta.get(key, "missing"))}',
                            effect=FORMAT)
    if not any(meta.get(key) for key in ('use_camera', 'use_lidar', 'use_radar')):
        yield Violation('meta', 'meta says that no sensor was used', effect=ADVICE)


def _check_box(box: Any, token: str, task: str) -> Iterator[tuple[str, str, str]]:
    """Kind, message and effect of what is wrong with a box taken alone."""
    if not isinstance(box, dict):
        yield 'schema', f'a box must be an object, not {_short(box)}', REFUSED
        return
    yield from ((violation.kind, violation.message, violation.effect) for violation in _twice(box))
    own = ('detection_name', 'detection_score', 'attribute_name') if task == 'detection' else \
        ('tracking_id', 'tracking_name', 'tracking_score')
    missing = [key for key in ('sample_token', *_VECTORS, *own) if key not in box]
    if missing:
        by_default = missing == [f'{task}_score']
        yield 'missing_field', f'lacks {", ".join(missing)}' + ': the devkit takes -1' * by_default, \
            FORMAT if by_default else REFUSED
    for key in _TRUTH_FIELDS:
        if key in box:
            yield 'truth_field', f'{key} belongs to annotations; the devkit reads it, and drops a box of 0 points', \
                FORMAT if box[key] == 0 or _is_vector(box[key], 3) else REFUSED
    other = box.get('sample_token', token)
    if other != token:
        yield 'sample_token', f'sample_token {_short(other)} is not that of its list: the box is held against the ' \
            'objects of that sample', FORMAT if isinstance(other, str) else REFUSED
    for key, length in _VECTORS.items():
        if key in box and not _is_vector(box[key], length):
            unknown = ': an unknown velocity is not scored' if key == 'velocity' and _is_taken(key, box[key]) else ''
            yield key, f'{key} must be {length} finite numbers, not {_short(box[key])}{unknown}', \
                FORMAT if _is_taken(key, box[key]) else REFUSED
    if _is_vector(box.get('size'), 3) and min(box['size']) <= 0:
        yield 'size', f'size must be positive, not {box["size"]}: the devkit stops where it meets an object', REFUSED
    if _is_vector(box.get('rotation'), 4) and abs(math.hypot(*box['rotation']) - 1) > 1e-3:
        norm = math.hypot(*box['rotation'])
        yield 'rotation', f'rotation is no unit quaternion: {box["rotation"]} has norm {norm:g}', FORMAT
    name, score = box.get(f'{task}_name'), box.get(f'{task}_score', 0.)
    if f'{task}_name' in box and name not in _NAMES[task]:
        yield 'class', f'{task}_name {_short(name)} is none of {", ".join(_NAMES[task])}', REFUSED
    if not _is_number(score) or not 0 <= score <= 1:
        yield 'score', f'{task}_score must be a number from 0 to 1, not {_short(score)}', _score_effect(score)
    attribute = box.get('attribute_name', '')
    if task == 'detection' and attribute != '' and attribute not in ATTRIBUTE_NAMES:
        yield 'attribute', f'attribute_name {_short(attribute)} is neither "" nor one of ' \
            f'{", ".join(ATTRIBUTE_NAMES)}', REFUSED
    elif task == 'detection' and attribute and name in _NAMES[task]:
        if _ATTRIBUTE_OF[name] not in ('', attribute.split('.')[0]):
            yield 'attribute', f'attribute_name {attribute} is none of a {name}: it always counts as wrong', ADVICE


def _check_track(box: dict, scene: Optional[str], ids: set,
                 classes: dict) -> Iterator[tuple[str, str, str]]:
    """The same for its id, given the ids before it in the frame and the class of each track; updates both."""
    if 'tracking_id' not in box:
        return
    track, name = box['tracking_id'], box.get('tracking_name')
    if not isinstance(track, str) or not track:
        yield 'tracking_id', f'tracking_id must be a string, not empty, not {_short(track)}', \
            REFUSED if isinstance(track, (list, dict)) else FORMAT
        return
    if track in ids:
        yield 'duplicate_id', f'tracking_id {track!r} is there twice in this sample', REFUSED
    ids.add(track)
    if name in TRACKING_NAMES and classes.setdefault((scene, track), name) != name:
        yield 'class_change', f'track {track!r} is a {name} here and was a {classes[scene, track]} before', FORMAT


def _twice(content: dict) -> Iterator[Violation]:
    for key in getattr(content, 'keys_twice', ()):
        yield Violation('duplicate_key', f'key {key!r} is there twice in one JSON object: the last one counts',
                        effect=FORMAT)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e308 < value < 1e308  # no bool, NaN, infinity


def _is_taken(key: str, value: Any) -> bool:
    """Whether the devkit reads this as a vector: of numbers that may be infinite, velocities also NaN."""
    return isinstance(value, list) and len(value) == _VECTORS[key] and all(
        isinstance(number, (int, float)) and (key == 'velocity' or number == number) for number in value)


def _score_effect(score: Any) -> str:
    """The devkit makes a float of it, which may be anything but NaN."""
    try:
        return FORMAT if float(score) == float(score) else REFUSED
    except (TypeError, ValueError, OverflowError):
        return REFUSED


def _is_vector(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(map(_is_number, value))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


# What a picture of a box needs.
_DRAWN = ('translation', 'size', 'rotation', 'velocity')


def read_results(path: str) -> dict[str, list[dict]]:
    """The boxes of a detection or tracking file by sample token, sound enough to be drawn, whatever the split.

    Raises:
        InputError: the file cannot be read, or boxes lack a field or have values that are no numbers; the message names
            up to ten.
    """
    content, found = read_submission(path)
    refuse(path, [violation.message for violation in found if violation.effect == REFUSED])
    results = content.get('results') if isinstance(content, dict) else None
    if not isinstance(results, dict) or not all(isinstance(boxes, list) for boxes in results.values()):
        raise InputError(f'{path} has no "results" with a list of boxes for each sample token: not a nuScenes '
                         'detection or tracking file')
    tracked = any('tracking_id' in box for boxes in results.values() for box in boxes if isinstance(box, dict))
    task = 'tracking' if tracked else 'detection'
    score = f'{task}_score'
    needed = (*_DRAWN, f'{task}_name', score, *(['tracking_id'] if tracked else []))
    faults = []
    for token, boxes in results.items():
        for index, box in enumerate(boxes):
            missing = [key for key in needed if key not in box] if isinstance(box, dict) else needed
            wrong = [] if missing else [key for key in _DRAWN if not _is_taken(key, box[key])] + (
                [] if _is_number(box[score]) else [score])
            if missing or wrong:
                text = f'lacks {", ".join(missing)}' if missing else f'{wrong[0]} is {_short(box[wrong[0]])}'
                faults.append(f'{path}: sample {token}, box {index}: {text}')
    refuse(path, faults)
    return results


def summarize(content: dict, task: str) -> str:
    """Counts of a valid submission in a few lines: frames, boxes, boxes per class, flags, tracks."""
    results, classes = content['results'], dict.fromkeys(_NAMES[task], 0)
    for boxes in results.values():
        for box in boxes:
            classes[box[f'{task}_name']] += 1
    counts = [len(boxes) for boxes in results.values()]
    lines = [f'{len(results)} samples, {sum(counts)} boxes, at most {max(counts, default=0)} in a sample, '
             f'{counts.count(0)} samples without any',
             'classes: ' + ', '.join(f'{name} {count}' for name, count in classes.items()),
             'meta: ' + ', '.join(key for key, value in content['meta'].items() if value)]
    if task == 'tracking':
        ids = {box['tracking_id'] for boxes in results.values() for box in boxes}
        lines.append(f'{len(ids)} different tracking ids')
    return '\n'.join(lines)


def write_zip(path: str, name: str, content: dict) -> None:
    """Write meta and results of ``content`` as the JSON file ``name`` into a zip."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive, archive.open(name, 'w', force_zip64=True) as file:
        text = io.TextIOWrapper(file, encoding='utf-8')
        dump_results(text, content['results'].items(), content['meta'])
        text.detach()


def effects(violations: Sequence[Violation]) -> str:
    """'2 refused by the server; 3 outside the format, the server takes it'."""
    counts = Counter(violation.effect for violation in violations)
    return '; '.join(f'{counts[effect]} {effect}' for effect in (REFUSED, FORMAT, ADVICE) if counts[effect])


def report(violations: Sequence[Violation], show: int) -> str:
    """The violations by kind, with counts, ``show`` of each (0: all)."""
    kinds = defaultdict(list)
    for violation in violations:
        kinds[violation.kind].append(violation)
    lines = []
    for kind, found in kinds.items():
        lines.append(f'{kind}: {len(found)}')
        lines += [f'    {violation}' for violation in found[:show or None]]
        if show and len(found) > show:
            lines.append(f'    ... and {len(found) - show} more (--show 0 lists all)')
    return '\n'.join(lines)


def split_of(split: str, data_root: str, version: Optional[str] = None) -> dict[str, list[Frame]]:
    """The scenes and frames that a submission must have; says so where the tables lack some that the server has."""
    scenes = split_frames(split, data_root, version)
    official = create_splits_scenes().get(split, ())
    absent = [name for name in official if name not in scenes]
    if absent:
        print(f'Note: the tables lack {len(absent)} of the {len(official)} scenes of {split}, e.g. '
              f'{", ".join(absent[:3])}. The server would miss their samples, this check does not.')
    return scenes
