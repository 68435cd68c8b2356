"""What the nuScenes tables must hold: one declarative schema, and the check of a set against it.

Only what is read is asked for; a field in :func:`maybe` may be missing, but must be right where it is there. A field
that holds for all records is looked at once, as a column: a million annotations take seconds.
"""
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Optional

import numpy as np

from georope.errors import InputError

SHOWN = 10  # faults in a message
_MISSING = object()
_UNIT = 1e-2  # of a quaternion's norm


class Kind(NamedTuple):
    """What a field holds: in words, and whether all values of a column do."""

    words: str
    holds: Callable[[list], bool]
    optional: bool = False


class Reference(NamedTuple):
    """A token of a record of ``table``, which belongs to the same ``owner``."""

    table: str
    end: bool = False  # '' is allowed: the end of a chain
    several: bool = False  # a list of tokens
    owner: Optional[tuple[str, str]] = None  # (field here, field there) that must be equal
    optional: bool = False


def maybe(field):
    """The same, of a field that may be missing."""
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
        return _numbers(flat) and more(np.array(flat, dtype=float).reshape(-1, length))
    return holds


def _are_units(array: np.ndarray) -> bool:
    return bool((np.abs(np.linalg.norm(array, axis=1) - 1) < _UNIT).all())


def _are_intrinsics(values: list) -> bool:
    if not (_types(list)(values) and all(_vectors(3)(value) and len(value) == 3 for value in values)):
        return False
    return bool((np.abs(np.linalg.det(np.array(values, dtype=float).reshape(-1, 3, 3))) > 1e-9).all())


TEXT = Kind('a string', _types(str))
NAME = Kind('a string, not empty', lambda values: _types(str)(values) and all(values))
NUMBER = Kind('a finite number', _numbers)
COUNT = Kind('a whole number', _types(int))
PIXELS = Kind('a whole number above 0', lambda values: _types(int)(values) and min(values, default=1) > 0)
FLAG = Kind('true or false', lambda values: _types(bool, int)(values) and set(values) <= {0, 1})
PLACE = Kind('x, y, z in metres: a list of 3 finite numbers', _vectors(3))
TURN = Kind('a quaternion w, x, y, z of length 1: a list of 4 finite numbers', _vectors(4, _are_units))
SIZE = Kind('width, length, height in metres: a list of 3 numbers above 0',
            _vectors(3, lambda array: bool((array > 0).all())))
INTRINSICS = Kind('a camera matrix: 3 lists of 3 finite numbers, not singular', _are_intrinsics)

TABLES = {
    'sensor': dict(channel=NAME, modality=NAME),
    'calibrated_sensor': dict(sensor_token=Reference('sensor'), translation=PLACE, rotation=TURN),
    'ego_pose': dict(translation=PLACE, rotation=TURN),
    'scene': dict(name=NAME, nbr_samples=COUNT,
                  first_sample_token=Reference('sample', owner=('token', 'scene_token')),
                  last_sample_token=Reference('sample', owner=('token', 'scene_token'), optional=True)),
    'sample': dict(timestamp=NUMBER, scene_token=Reference('scene'),
                   prev=Reference('sample', end=True, owner=('scene_token', 'scene_token')),
                   next=Reference('sample', end=True, owner=('scene_token', 'scene_token'))),
    'sample_data': dict(is_key_frame=FLAG, timestamp=NUMBER, filename=TEXT, sample_token=Reference('sample'),
                        ego_pose_token=Reference('ego_pose'), calibrated_sensor_token=Reference('calibrated_sensor')),
    'category': dict(name=NAME),
    'attribute': dict(name=NAME),
    'instance': dict(category_token=Reference('category'),
                     first_annotation_token=Reference('sample_annotation', owner=('token', 'instance_token'),
                                                      optional=True),
                     last_annotation_token=Reference('sample_annotation', owner=('token', 'instance_token'),
                                                     optional=True)),
    'sample_annotation': dict(translation=PLACE, rotation=TURN, size=SIZE, sample_token=Reference('sample'),
                              instance_token=Reference('instance'),
                              attribute_tokens=Reference('attribute', several=True),
                              prev=Reference('sample_annotation', end=True, owner=('instance_token', ) * 2),
                              next=Reference('sample_annotation', end=True, owner=('instance_token', ) * 2),
                              num_lidar_pts=maybe(COUNT), num_radar_pts=maybe(COUNT)),
}
# What only a camera needs of its calibration and of its key frames.
CAMERA = {'calibrated_sensor': dict(camera_intrinsic=INTRINSICS),
          'sample_data': dict(filename=NAME, width=PIXELS, height=PIXELS)}
# Names that tell records apart, besides the tokens.
UNIQUE = {'scene': 'name', 'category': 'name'}


class Fault(NamedTuple):
    """What is wrong with one record."""

    table: str
    record: str  # its token, or its place
    field: str
    message: str


def check_tables(folder: str, tables: Mapping[str, Sequence[dict]],
                 schema: Mapping[str, Mapping[str, Any]] = TABLES) -> None:
    """Check all tables of a set against the schema.

    Args:
        folder: the tables' folder, for the message.
        tables: the tables read, by name; references into others are not followed. Of ``sample_data`` only key frames
            are looked at.
        schema: :data:`TABLES`, or a part of it.

    Raises:
        InputError: up to ten faults with file, record, field and what to do, and how many there are.
    """
    tokens = {name: _tokens(rows) for name, rows in tables.items()}
    faults = [fault for name in schema if name in tables for fault in _table_faults(name, tables, tokens, schema[name])]
    if not faults:  # the rest follows tokens
        faults = list(_camera_faults(tables)) + list(_owner_faults(tables, schema))
    if not faults and schema is TABLES:
        faults = list(_chain_faults(tables))
    refuse(folder, faults)


def refuse(folder: str, faults: Sequence[Fault]) -> None:
    """An InputError if there are faults: the first of each table and field, then the others, ten in all."""
    if not faults:
        return
    places, seen = [], Counter()
    for fault in faults:
        places.append(seen[fault.table, fault.field])
        seen[fault.table, fault.field] += 1
    shown = sorted(sorted(range(len(faults)), key=lambda i: (places[i], i))[:SHOWN])
    lines = [f'{folder}/{fault.table}.json: record {fault.record}: {fault.field} {fault.message}'
             for fault in (faults[i] for i in shown)]
    if len(faults) > 1:
        head = f'{folder}: {len(faults)} faults' + (f', {SHOWN} of them:' if len(faults) > SHOWN else ':')
        lines = [head, *(f'  {line}' for line in lines)]
    raise InputError('\n'.join(lines))


def _tokens(rows: Any) -> dict:
    """Records by token, of what may be no table."""
    if not isinstance(rows, list):
        return {}
    return {row['token']: row for row in rows if isinstance(row, dict) and isinstance(row.get('token'), str)}


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def _record(rows: Sequence, row: Any) -> str:
    token = row.get('token') if isinstance(row, dict) else None
    return token if isinstance(token, str) and token else f'number {next(i for i, r in enumerate(rows) if r is row)}'


def _table_faults(name: str, tables: Mapping, tokens: Mapping, fields: Mapping) -> Iterator[Fault]:
    rows = tables[name]
    if not isinstance(rows, list):
        yield Fault(name, '-', 'the table', f'must be a list of records, not {short(rows)}: export it again')
        return
    records = [row for row in rows if isinstance(row, dict)]
    if len(records) < len(rows):
        for row in rows:
            if not isinstance(row, dict):
                yield Fault(name, _record(rows, row), 'the record', f'must be an object, not {short(row)}')
    yield from _column_faults(name, rows, records, 'token', NAME, tokens)
    if len(tokens[name]) < len(records):
        count = Counter(row['token'] for row in records if isinstance(row.get('token'), str))
        for token, times in count.items():
            if times > 1:
                yield Fault(name, token, 'token', f'is there {times} times: tokens are unique, remove the others')
    if name in UNIQUE:
        values = Counter(row.get(UNIQUE[name]) for row in records if isinstance(row.get(UNIQUE[name]), str))
        for row in records:
            value = row.get(UNIQUE[name])
            if isinstance(value, str) and values[value] > 1:
                yield Fault(name, _record(rows, row), UNIQUE[name],
                            f'{value!r} is that of {values[value]} records: rename them, {name}s are told apart by it')
    if name == 'sample_data' and 'is_key_frame' in fields:
        records = key_frames(records)
    for field, wanted in fields.items():
        yield from _column_faults(name, rows, records, field, wanted, tokens)


def key_frames(records: Sequence[dict]) -> list:
    """The records of ``sample_data`` that are read: not the sweeps between the samples."""
    return [row for row in records if not isinstance(row.get('is_key_frame'), int) or row['is_key_frame']]


def _column_faults(name: str, rows: Sequence, records: Sequence[dict], field: str, wanted: Any,
                   tokens: Mapping) -> Iterator[Fault]:
    """The faults of one field, which are looked for only if the column as a whole has some."""
    if isinstance(wanted, Reference):
        if wanted.table not in tokens:
            return
        known = tokens[wanted.table].keys() | ({''} if wanted.end else set())
        words = f'a token of {wanted.table}.json' + (" or ''" if wanted.end else '')
        if wanted.several:
            words = f'a list of tokens of {wanted.table}.json'

            def holds(values: list) -> bool:
                return _types(list)(values) and set(chain.from_iterable(values)) <= known
        else:
            def holds(values: list) -> bool:
                return set(values) <= known
    else:
        words, holds = wanted.words, wanted.holds
    column = [row.get(field, _MISSING) for row in records]
    there = [value for value in column if value is not _MISSING]
    complete = len(there) == len(column) or wanted.optional
    if complete and _all(holds, there):
        return
    for row, value in zip(records, column):
        if value is _MISSING:
            if not wanted.optional:
                yield Fault(name, _record(rows, row), field, f'is missing; it must be {words}')
        elif not _all(holds, [value]):
            text = f'is {short(value)}; it must be {words}'
            if isinstance(wanted, Reference) and _all(_types(str), value if wanted.several else [value]):
                lost = [token for token in value if token not in known] if wanted.several else [value]
                text = (f'{lost[0]!r} leads nowhere: {wanted.table}.json has no such token. Add that record, or take '
                        'the token out')
            yield Fault(name, _record(rows, row), field, text)


def _all(holds: Callable[[list], bool], values: list) -> bool:
    try:
        return holds(values)
    except (TypeError, ValueError, OverflowError):  # no list, not hashable, too large for a float
        return False


def _camera_faults(tables: Mapping) -> Iterator[Fault]:
    if not {'sensor', *CAMERA} <= set(tables):
        return
    sensors = {row['token'] for row in tables['sensor'] if row['modality'] == 'camera'}
    calibrations = [row for row in tables['calibrated_sensor'] if row['sensor_token'] in sensors]
    used = {row['token'] for row in calibrations}
    frames = [row for row in key_frames(tables['sample_data']) if row['calibrated_sensor_token'] in used]
    for name, records in (('calibrated_sensor', calibrations), ('sample_data', frames)):
        for field, wanted in CAMERA[name].items():
            yield from _column_faults(name, tables[name], records, field, wanted, {})


def _owner_faults(tables: Mapping, schema: Mapping) -> Iterator[Fault]:
    """Chains that lead into another scene or instance."""
    for name, fields in schema.items():
        for field, wanted in fields.items():
            if not isinstance(wanted, Reference) or wanted.owner is None or wanted.table not in tables:
                continue
            here, there = wanted.owner
            owner = {row['token']: row[there] for row in tables[wanted.table]}
            for row in tables.get(name, ()):
                token = row.get(field)
                if token and owner[token] != row[here]:
                    yield Fault(name, row['token'], field,
                                f'{token!r} leads to a record whose {there} is {owner[token]!r}, not {row[here]!r}: '
                                'link records of one and the same')


def _chain_faults(tables: Mapping) -> Iterator[Fault]:
    """Key frames that are there twice, chains of samples that miss some, and chains that go back in time."""
    channels = {row['token']: row['channel'] for row in tables['sensor']}
    channels = {row['token']: channels[row['sensor_token']] for row in tables['calibrated_sensor']}
    seen = set()
    for row in key_frames(tables['sample_data']):
        place = (row['sample_token'], channels[row['calibrated_sensor_token']])
        if place in seen:
            yield Fault('sample_data', row['token'], 'sample_token', f'has more than one key frame of {place[1]} in '
                        f'sample {place[0]!r}: one is allowed, is_key_frame of the others is false')
        seen.add(place)

    samples, members = {row['token']: row for row in tables['sample']}, defaultdict(int)
    for row in tables['sample']:
        members[row['scene_token']] += 1
    for scene in tables['scene']:
        linked, token, last = 0, scene['first_sample_token'], ''
        while token and linked <= members[scene['token']]:
            sample = samples[token]
            if sample['prev'] != last:
                yield Fault('sample', token, 'prev', f'is {sample["prev"]!r}, but the sample before it is {last!r}: '
                            'link them both ways')
            if last and sample['timestamp'] <= samples[last]['timestamp']:
                yield Fault('sample', token, 'timestamp', f'{sample["timestamp"]} is not after '
                            f'{samples[last]["timestamp"]} of {last}, the sample before it: link them in order of time')
            linked, token, last = linked + 1, sample['next'], token
        if not linked == scene['nbr_samples'] == members[scene['token']]:
            yield Fault('scene', scene['token'], 'nbr_samples', f'is {scene["nbr_samples"]}; sample.json links '
                        f'{linked} and has {members[scene["token"]]} samples of {scene["name"]}: all must be linked')
    times = {row['token']: samples[row['sample_token']]['timestamp'] for row in tables['sample_annotation']}
    for row in tables['sample_annotation']:
        if (row['next'] and times[row['next']] <= times[row['token']]) or (
                row['prev'] and times[row['prev']] >= times[row['token']]):
            field = 'next' if row['next'] and times[row['next']] <= times[row['token']] else 'prev'
            yield Fault('sample_annotation', row['token'], field, f'{row[field]!r} is not in order of time: link the '
                        'annotations of an instance from sample to later sample')
