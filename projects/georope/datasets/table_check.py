"""The check of nuScenes tables against :mod:`.schema`: all faults of a set at once, each with its record and field."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from georope.errors import refuse

from .schema import CAMERA, NAME, TABLES, UNIQUE, Kind, Reference

_MISSING = object()


class Fault(NamedTuple):
    """What is wrong with one record."""

    table: str
    record: str  # its token, or its number in the table
    field: str
    message: str


def check_tables(folder: str, tables: Mapping[str, Any], schema: Mapping[str, Mapping] = TABLES) -> None:
    """Check all tables of a set against the schema.

    Args:
        folder: the tables' folder, for the message.
        tables: the tables read, by name; references into others are not followed. Of ``sample_data`` only key frames
            are looked at.
        schema: :data:`~.schema.TABLES`, or a part of it.

    Raises:
        InputError: up to ten faults with file, record, field and what to do, and how many there are.
    """
    tables = {name: tables[name] for name in schema if name in tables}
    faults = [fault for name, rows in tables.items() for fault in _shape_faults(name, rows)]
    if not faults:
        tokens = {name: {row['token'] for row in rows} for name, rows in tables.items()}
        used = {name: key_frames(rows) if name == 'sample_data' else rows for name, rows in tables.items()}
        faults = [fault for name, rows in used.items() for field, wanted in schema[name].items()
                  for fault in _column_faults(name, rows, field, wanted, tokens)]
        if not faults:  # the rest follows tokens
            faults = [*_camera_faults(used), *_owner_faults(used, schema)]
        if not faults and schema is TABLES:
            faults = [*_sample_faults(used), *_scene_faults(used), *_time_faults(used)]
    refuse(folder, [f'{folder}/{fault.table}.json: record {fault.record}: {fault.field} {fault.message}'
                    for fault in _of_each_first(faults)])


def _of_each_first(faults: Sequence[Fault]) -> list[Fault]:
    """The faults in another order: the first of each table and field, then the second ones, and so on."""
    seen, ranks = Counter(), []
    for fault in faults:
        ranks.append(seen[fault[::2]])
        seen[fault[::2]] += 1
    return [faults[i] for i in sorted(range(len(faults)), key=ranks.__getitem__)]


def short(value: Any) -> str:
    """A value as short text for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def key_frames(records: Sequence[dict]) -> list[dict]:
    """The records of ``sample_data`` that are read: not the sweeps between the samples."""
    return [row for row in records if row.get('is_key_frame') not in (False, 0)]


def _shape_faults(name: str, rows: Any) -> Iterator[Fault]:
    """A table is a list of objects, each with a token of its own."""
    if not isinstance(rows, list):
        yield Fault(name, '-', 'the table', f'must be a list of records, not {short(rows)}: export it again')
        return
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            yield Fault(name, f'number {number}', 'the record', f'must be an object, not {short(row)}: export it again')
        elif not _all(NAME, [row.get('token')]):
            yield Fault(name, f'number {number}', 'token', f'is {short(row.get("token"))}; it must be {NAME.words}')
    for field in ('token', *([UNIQUE[name]] if name in UNIQUE else ())):
        values = [(row.get('token'), row[field]) for row in rows
                  if isinstance(row, dict) and isinstance(row.get(field), str)]
        if len({value for _, value in values}) < len(values):
            count = Counter(value for _, value in values)
            for token, value in values:
                if count[value] > 1:
                    yield Fault(name, token, field, f'{value!r} is that of {count[value]} records: each needs its own; '
                                'rename or remove the others')


def _column_faults(name: str, rows: Sequence[dict], field: str, wanted: Kind | Reference,
                   tokens: Mapping[str, set]) -> Iterator[Fault]:
    """The faults of one field. Records are checked one by one only if the column as a whole has a fault."""
    refers = isinstance(wanted, Reference)
    if refers and wanted.table not in tokens:
        return
    kind = wanted.kind(tokens[wanted.table]) if refers else wanted
    column = [row.get(field, _MISSING) for row in rows]
    there = [value for value in column if value is not _MISSING]
    if (len(there) == len(column) or kind.optional) and _all(kind, there):
        return
    for row, value in zip(rows, column):
        if value is _MISSING:
            if not kind.optional:
                yield Fault(name, row['token'], field, f'is missing; it must be {kind.words}')
        elif not _all(kind, [value]):
            text = f'is {short(value)}; it must be {kind.words}'
            links = value if refers and wanted.several and isinstance(value, list) else [value]
            if refers and all(isinstance(token, str) for token in links):
                lost = next(token for token in links if token not in tokens[wanted.table])
                text = f'{lost!r} leads nowhere: {wanted.table}.json has no such token. Add that record, or correct it'
            yield Fault(name, row['token'], field, text)


def _all(kind: Kind, values: list) -> bool:
    try:
        return kind.holds(values)
    except (TypeError, ValueError, OverflowError):  # no list, not hashable, too large for a float
        return False


def _camera_faults(tables: Mapping[str, Sequence[dict]]) -> Iterator[Fault]:
    if not {'sensor', *CAMERA} <= set(tables):
        return
    sensors = {row['token'] for row in tables['sensor'] if row['modality'] == 'camera'}
    calibrations = [row for row in tables['calibrated_sensor'] if row['sensor_token'] in sensors]
    used = {row['token'] for row in calibrations}
    frames = [row for row in tables['sample_data'] if row['calibrated_sensor_token'] in used]
    for name, records in (('calibrated_sensor', calibrations), ('sample_data', frames)):
        for field, wanted in CAMERA[name].items():
            yield from _column_faults(name, records, field, wanted, {})


def _owner_faults(tables: Mapping[str, Sequence[dict]], schema: Mapping[str, Mapping]) -> Iterator[Fault]:
    """Links that lead into another scene or instance."""
    for name, rows in tables.items():
        for field, wanted in schema[name].items():
            if not isinstance(wanted, Reference) or wanted.owner is None or wanted.table not in tables:
                continue
            here, there = wanted.owner
            owner = {row['token']: row[there] for row in tables[wanted.table]}
            for row in rows:
                token = row.get(field)
                if token and owner[token] != row[here]:
                    yield Fault(name, row['token'], field,
                                f'{token!r} leads to a record whose {there} is {owner[token]!r}, not {row[here]!r}: '
                                'link records of one and the same')


def _sample_faults(tables: Mapping[str, Sequence[dict]]) -> Iterator[Fault]:
    """Sensors that have two key frames in one sample."""
    channels = {row['token']: row['channel'] for row in tables['sensor']}
    channels = {row['token']: channels[row['sensor_token']] for row in tables['calibrated_sensor']}
    seen = set()
    for row in tables['sample_data']:
        image = (row['sample_token'], channels[row['calibrated_sensor_token']])
        if image in seen:
            yield Fault('sample_data', row['token'], 'sample_token', f'is {image[0]!r}, a sample that has another key '
                        f'frame of {image[1]}: one is allowed, set is_key_frame of the others to false')
        seen.add(image)


def _scene_faults(tables: Mapping[str, Sequence[dict]]) -> Iterator[Fault]:
    """Chains of samples that miss some of their scene or go back in time."""
    samples = {row['token']: row for row in tables['sample']}
    members = Counter(row['scene_token'] for row in tables['sample'])
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


def _time_faults(tables: Mapping[str, Sequence[dict]]) -> Iterator[Fault]:
    """Chains of annotations that go back in time."""
    times = {row['token']: row['timestamp'] for row in tables['sample']}
    times = {row['token']: times[row['sample_token']] for row in tables.get('sample_annotation', ())}
    for row in tables.get('sample_annotation', ()):
        for field, way, word in (('prev', -1, 'before'), ('next', 1, 'after')):
            if row[field] and way * (times[row[field]] - times[row['token']]) <= 0:
                yield Fault('sample_annotation', row['token'], field, f'{row[field]!r} is not {word} it in time: link '
                            'the annotations of an instance from sample to later sample')
