"""The offline validator: it accepts valid files, and finds every kind of fault put into them, where it is."""
import copy
import json
import math
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.common.loaders import load_prediction
from nuscenes.eval.detection.constants import ATTRIBUTE_NAMES, DETECTION_NAMES
from nuscenes.eval.detection.data_classes import DetectionBox
from nuscenes.eval.tracking.data_classes import TrackingBox

from georope.evaluation.results import CAMERA_META
from georope.evaluation.scenes import Frame
from georope.evaluation.submission import REFUSED, check_submission, report, summarize, write_zip
from georope.evaluation.tracker import TRACKING_NAMES

SCENES = dict(A=[Frame('a0', 0), Frame('a1', 500_000)], B=[Frame('b0', 900_000)])
TOKENS = ['a0', 'a1', 'b0']
many = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attributes_of(name) -> list:
    """What a box of the class may have: see the table in the devkit's README of detection. Of cones all are ignored."""
    family = dict(pedestrian='pedestrian', bicycle='cycle', motorcycle='cycle', barrier='', traffic_cone='')
    return [one for one in ATTRIBUTE_NAMES if one.startswith(family.get(name, 'vehicle'))] + ['']


def boxes_of(rng, token, task, min_size) -> list:
    """Valid boxes of a sample. A track keeps its class: its id begins with it."""
    boxes = []
    for i in range(rng.integers(min_size, 5)):
        rotation = rng.normal(size=4)
        box = dict(sample_token=token, translation=rng.uniform(-1e4, 1e4, 3).tolist(),
                   size=rng.choice([.01, 1, 50], 3).tolist(), velocity=rng.uniform(-90, 90, 2).tolist(),
                   rotation=(rotation / np.linalg.norm(rotation)).tolist())
        score = [0, 1, 0., 1., rng.uniform()][rng.integers(5)]
        if task == 'detection':
            name = str(rng.choice(DETECTION_NAMES))
            box.update(detection_name=name, detection_score=score, attribute_name=str(rng.choice(attributes_of(name))))
        else:
            name = str(rng.choice(TRACKING_NAMES))
            box.update(tracking_id=f'{name}-{i}', tracking_name=name, tracking_score=score)
        boxes.append(box)
    return boxes


@st.composite
def submissions(draw, task):
    """A valid file, the token and the index of a box in it. From a seed: drawn one by one, the numbers take minutes."""
    token, rng = draw(st.sampled_from(TOKENS)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    results = {name: boxes_of(rng, name, task, int(name == token)) for name in rng.permutation(TOKENS).tolist()}
    meta = dict(zip(CAMERA_META, rng.uniform(size=5) < .5), use_camera=True)
    content = dict(meta={key: bool(value) for key, value in meta.items()}, results=results)
    return content, token, draw(st.integers(0, len(results[token]) - 1))


def check(tmp_path, content, task) -> list:
    path = tmp_path / 'file.json'
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return check_submission(str(path), task, SCENES)


def devkit_accepts(tmp_path, task) -> bool:
    """The server's own loader, and its comparison of samples, on the file that ``check`` wrote."""
    box_class = DetectionBox if task == 'detection' else TrackingBox
    config_factory('tracking_nips_2019')  # sets the names that TrackingBox knows
    try:
        boxes, _ = load_prediction(str(tmp_path / 'file.json'), 500, box_class)
    except Exception:
        return False
    return set(boxes.sample_tokens) == set(TOKENS)


@pytest.mark.parametrize('task', ['detection', 'tracking'])
def test_valid_files_are_accepted(tmp_path, task):
    @many
    @given(submissions(task))
    def accepted(drawn):
        assert check(tmp_path, drawn[0], task) == []
        assert devkit_accepts(tmp_path, task)
        write_zip(str(tmp_path / 'file.zip'), 'results.json', drawn[0])
        assert check_submission(str(tmp_path / 'file.zip'), task, SCENES) == []
        assert '3 samples' in summarize(drawn[0], task)
    accepted()


def put(key, *values):
    """A fault of a box: one of its values becomes one of these."""
    return [lambda box, value=value: box.update({key: value}) for value in values]


def put_in(key, *values):
    """The same for one number of a vector."""
    return [lambda box, value=value: box[key].__setitem__(-1, value) for value in values]


def resized(key):
    return [lambda box: box[key].append(1.), lambda box: box[key].pop(), lambda box: box.update({key: tuple('12')})]


NAN, INF = math.nan, math.inf
VECTORS = ('translation', 'size', 'rotation', 'velocity')
NO_NUMBERS = (NAN, INF, -INF, 'x', None, True, [1.])
BOX_FAULTS = {
    **{f'{key} {what}': (key, faults) for key in VECTORS for what, faults in dict(
        numbers=put_in(key, *NO_NUMBERS), length=resized(key), type=put(key, 'abc', 1., None, {})).items()},
    'size of nothing': ('size', put_in('size', 0., -1.)),
    'rotation of another norm': ('rotation', put('rotation', [0.] * 4, [1., 1., 0., 0.], [.99, 0., 0., 0.])),
    'token of another sample': ('sample_token', put('sample_token', 'other', 'A', 3, None, '')),
    'num_pts': ('truth_field', put('num_pts', 0)),
    'ego_translation': ('truth_field', put('ego_translation', [0., 0., 0.])),
}
TASK_FAULTS = {
    'class': ('class', lambda task: put(f'{task}_name', 'tram', 'Car', '', None, 3, ['car'],
                                        *(('barrier', ) if task == 'tracking' else ()))),
    'score type': ('score', lambda task: put(f'{task}_score', '0.5', None, True, [.5])),
    'score NaN': ('score', lambda task: put(f'{task}_score', NAN, INF, -INF)),
    'score range': ('score', lambda task: put(f'{task}_score', -.1, 1.01, 100)),
    'missing field': ('missing_field', lambda task: [
        lambda box, key=key: box.pop(key) for key in (
            *VECTORS, 'sample_token', f'{task}_name', f'{task}_score',
            'attribute_name' if task == 'detection' else 'tracking_id')]),
}
OWN_FAULTS = {
    'detection': {'attribute': ('attribute', put('attribute_name', 'None', 'vehicle.flying', None, 3, ['']))},
    'tracking': {'tracking id': ('tracking_id', put('tracking_id', 3, None, 1.5, '', ['a'], True))},
}
FAULTS = [(task, name, kind, faults) for task in ('detection', 'tracking') for name, (kind, faults) in {
    **BOX_FAULTS, **{name: (kind, of(task)) for name, (kind, of) in TASK_FAULTS.items()}, **OWN_FAULTS[task]}.items()]


@pytest.mark.parametrize('task, name, kind, faults', FAULTS, ids=[f'{task}-{name}' for task, name, *_ in FAULTS])
def test_a_fault_of_a_box_is_found_where_it_is(tmp_path, task, name, kind, faults):
    @many
    @given(submissions(task), st.sampled_from(faults))
    def found(drawn, fault):
        content, token, index = copy.deepcopy(drawn)
        fault(content['results'][token][index])
        violations = check(tmp_path, content, task)
        assert {(v.kind, v.token, v.index) for v in violations} == {(kind, token, index)}
        assert f'sample {token}, box {index}: ' in str(violations[0])
        # What the devkit's loader stops at is refused; it stops at a size of nothing only when it compares boxes.
        refused = any(violation.effect == REFUSED for violation in violations)
        assert devkit_accepts(tmp_path, task) != refused or (refused and kind in ('size', 'velocity', 'tracking_id'))
    found()


@many
@given(submissions('detection'), st.sampled_from(DETECTION_NAMES), st.sampled_from(ATTRIBUTE_NAMES))
def test_an_attribute_of_another_class(tmp_path, drawn, name, attribute):
    """The devkit takes it and counts it as wrong."""
    content, token, index = drawn
    content['results'][token][index].update(detection_name=name, attribute_name=attribute)
    found = [(v.kind, v.token, v.index) for v in check(tmp_path, content, 'detection')]
    assert found == ([] if attribute in attributes_of(name) else [('attribute', token, index)])
    assert devkit_accepts(tmp_path, 'detection')


# The fault, and what must be found: (kind, token, index) or (kind, whole file).
FILE_FAULTS = {
    'sample missing': lambda c, t, i: c['results'].pop(t) and ('missing_sample', t, None),
    'sample foreign': lambda c, t, i: c['results'].update(x=[]) or ('foreign_sample', 'x', None),
    'boxes no list': lambda c, t, i: c['results'].update({t: dict(boxes=[])}) or ('schema', t, None),
    'box no object': lambda c, t, i: c['results'][t].insert(0, [1]) or ('schema', t, 0),
    '501 boxes': lambda c, t, i: c['results'].update({t: c['results'][t] * 501}) or ('too_many_boxes', t, None),
    'no boxes': lambda c, t, i: [boxes.clear() for boxes in c['results'].values()] and ('no_boxes', None, None),
    'no results': lambda c, t, i: c.pop('results') and ('schema', None, None),
    'results a list': lambda c, t, i: c.update(results=[]) or ('schema', None, None),
    'no meta': lambda c, t, i: c.pop('meta') and ('meta', None, None),
    'meta no object': lambda c, t, i: c.update(meta=['use_camera']) or ('meta', None, None),
    'flag missing': lambda c, t, i: c['meta'].pop('use_map', 1) is not None and ('meta', None, None),
    'flag no bool': lambda c, t, i: c['meta'].update(use_lidar=1) or ('meta', None, None),
    'flag a word': lambda c, t, i: c['meta'].update(use_external='False') or ('meta', None, None),
    'no sensor': lambda c, t, i: c['meta'].update(
        use_camera=False, use_lidar=False, use_radar=False) or ('meta', None, None),
}


@pytest.mark.parametrize('task', ['detection', 'tracking'])
@pytest.mark.parametrize('name', FILE_FAULTS)
def test_a_fault_of_the_file_is_found(tmp_path, task, name):
    @many
    @given(submissions(task))
    def found(drawn):
        content, token, index = copy.deepcopy(drawn)
        expected = FILE_FAULTS[name](content, token, index)
        assert expected in {(v.kind, v.token, v.index) for v in check(tmp_path, content, task)}
    found()


@many
@given(drawn=submissions('tracking'))
def test_an_id_twice_in_a_sample(tmp_path, drawn):
    content, token, index = drawn
    boxes = content['results'][token]
    boxes.append(copy.deepcopy(boxes[index]))
    assert [(v.kind, v.token, v.index) for v in check(tmp_path, content, 'tracking')] == [
        ('duplicate_id', token, len(boxes) - 1)]


@many
@given(drawn=submissions('tracking'), data=st.data())
def test_a_track_that_changes_its_class(tmp_path, drawn, data):
    """Within a scene; in another scene the same id is another track."""
    content, token, index = drawn
    box = copy.deepcopy(content['results'][token][index])
    box['tracking_id'] = content['results'][token][index]['tracking_id'] = 'mine'
    box['tracking_name'] = data.draw(st.sampled_from([n for n in TRACKING_NAMES if n != box['tracking_name']]))
    other = 'a1' if token == 'a0' else 'a0'
    box['sample_token'] = other
    content['results'][other].append(box)
    found = [v.kind for v in check(tmp_path, content, 'tracking')]
    assert found == ([] if token == 'b0' else ['class_change'])


@pytest.mark.parametrize('level', ['file', 'meta', 'results', 'box'])
@many
@given(drawn=submissions('detection'))
def test_a_key_twice_in_an_object(tmp_path, level, drawn):
    """Python's parser keeps the last and says nothing: boxes of a sample that is there twice would be lost."""
    content, token, index = drawn
    box = json.dumps(content['results'][token][index])
    text = json.dumps(content)
    old, new = dict(
        file=('{"meta"', '{"meta": {}, "meta"'), meta=('"meta": {', '"meta": {"use_map": false, '),
        results=('"results": {', f'"results": {{"{token}": [], '),
        box=(box, box[:-1] + ', "size": [1.0, 1.0, 1.0]}'))[level]
    violations = check(tmp_path, text.replace(old, new, 1), 'detection')
    assert [v.kind for v in violations] == ['duplicate_key']
    assert (violations[0].token is not None) == (level == 'box')


@pytest.mark.parametrize('text', ['', '{"meta": ', 'results', '\ufeff{}', '[' * 100_000])
def test_no_json(tmp_path, text):
    assert [v.kind for v in check(tmp_path, text, 'detection')] == ['unreadable']


@pytest.mark.parametrize('text', ['null', '[]', '3', '{}'])
def test_json_of_something_else(tmp_path, text):
    assert [v.kind for v in check(tmp_path, text, 'detection')] == ['schema']


def valid() -> dict:
    box = dict(sample_token='a0', translation=[1, 2, 3], size=[1, 1, 1], rotation=[1, 0, 0, 0], velocity=[0, 0],
               detection_name='car', detection_score=.5, attribute_name='')
    return dict(meta=CAMERA_META, results=dict(a0=[box], a1=[], b0=[]))


@pytest.mark.parametrize('names', [[], ['a.json', 'b.json'], ['a.txt'], ['folder/a.json'], ['__MACOSX/x', 'a.json']])
def test_a_zip_holds_one_json(tmp_path, names):
    with zipfile.ZipFile(tmp_path / 'file.zip', 'w') as archive:
        for name in names:
            archive.writestr(name, json.dumps(valid()))
    assert [v.kind for v in check_submission(str(tmp_path / 'file.zip'), 'detection', SCENES)] == ['zip']


@pytest.mark.parametrize('compression', [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip(tmp_path, compression):
    path = tmp_path / 'file.zip'
    with zipfile.ZipFile(path, 'w', compression) as archive:
        archive.writestr('a.json', json.dumps(valid()))
    assert check_submission(str(path), 'detection', SCENES) == []
    whole = path.read_bytes()
    for position in range(60, len(whole) - 100, 20):  # in the data: what else a zip holds may be of no consequence
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xff]) + whole[position + 1:])
        assert [v.kind for v in check_submission(str(path), 'detection', SCENES)] == ['unreadable'], position


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='nothing.json'):
        check_submission(str(tmp_path / 'nothing.json'), 'detection', SCENES)


def test_a_token_that_no_terminal_can_show(tmp_path):
    content = valid()
    content['results']['x\ud800\n'] = []
    violation, = check(tmp_path, content, 'detection')
    assert violation.kind == 'foreign_sample' and r'sample x\ud800\n: ' in str(violation)


def test_size_of_a_zip(tmp_path):
    path = str(tmp_path / 'file.zip')
    write_zip(path, 'a.json', valid())
    assert check_submission(path, 'detection', SCENES) == []
    violation, = check_submission(path, 'detection', SCENES, max_zip_mb=1e-4)
    assert violation.kind == 'file_size' and 'over the limit' in str(violation)


def test_without_its_class_a_box_is_told_nothing_of_its_attribute(tmp_path):
    content = valid()
    del content['results']['a0'][0]['detection_name']
    content['results']['a0'][0]['attribute_name'] = 'vehicle.moving'
    assert [v.kind for v in check(tmp_path, content, 'detection')] == ['missing_field']


def test_the_wrong_task(tmp_path):
    found = check(tmp_path, valid(), 'tracking')
    assert [v.kind for v in found] == ['missing_field'] and 'tracking_id' in found[0].message
    with pytest.raises(ValueError, match='detection, tracking'):
        check_submission('x', 'detect', SCENES)


def test_a_long_report_counts(tmp_path):
    content = valid()
    content['results']['a0'] = [dict(content['results']['a0'][0], detection_score=2.)] * 30
    found = check(tmp_path, content, 'detection')
    lines = report(found, 3).splitlines()
    assert lines[0] == 'score: 30' and len(lines) == 5 and '27 more' in lines[-1]
    assert len(report(found, 0).splitlines()) == 31


junk = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(['', 'x']),
                 st.lists(st.floats(-2, 2), max_size=4), st.just({}))


@pytest.mark.parametrize('task', ['detection', 'tracking'])
def test_whatever_the_devkit_refuses_is_found(tmp_path, task):
    """Random damage anywhere: what the validator lets through, the devkit's loader reads."""
    seen = dict(refused=0, accepted=0)

    @settings(many, max_examples=300)
    @given(submissions(task), st.data())
    def found(drawn, data):
        content, token, index = copy.deepcopy(drawn)
        box = content['results'][token][index]
        node, key = data.draw(st.sampled_from(
            [(box, key) for key in box] + [(box[key], i) for key in VECTORS for i in range(len(box[key]))]
            + [(content['results'], name) for name in TOKENS] + [(content, key) for key in content]))
        if data.draw(st.booleans()):
            node[key] = data.draw(junk)
        else:
            del node[key]
        violations = check(tmp_path, content, task)
        accepted = devkit_accepts(tmp_path, task)
        assert accepted or violations
        seen['accepted' if accepted else 'refused'] += 1
    found()
    assert min(seen.values()) > 5
