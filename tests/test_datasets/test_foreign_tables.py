"""Tables, info files and results of others: a fault is named with file, record and field, and nothing is written.

Faults are put into every field of the schema, whatever it is; ../shared/fails has sets as people met them.
"""
import copy
import json
import pickle
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
from small_nuscenes import write_nuscenes

from georope.datasets.converter import CLASSES, create_infos, update_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.datasets.schema import CAMERA, TABLES, Reference
from georope.datasets.table_check import check_tables
from georope.datasets.tables import NuScenesTables
from georope.errors import InputError, MissingInput, UnreadableInput
from georope.files import LFS_POINTER
from georope.visualization.info import ground_truth

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
CAMERAS = ('CAM_FRONT', 'CAM_BACK')
WRONG = [None, 'words', [], [1, 2], {}, float('nan'), [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
POINTER = LFS_POINTER + b'.com/spec/v1\noid sha256:0\nsize 7\n'


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return write_nuscenes(tmp_path_factory.mktemp('set'), images=False, cameras=CAMERAS)


@pytest.fixture(scope='module')
def tables(root):
    return {name: json.loads((root / f'v1.0-mini/{name}.json').read_text()) for name in TABLES}


@pytest.fixture
def altered(tables, tmp_path):
    """The set with some records changed: change(tables) edits a copy."""
    def make(change, **files):
        content = copy.deepcopy(tables)
        change(content)
        (tmp_path / 'set/v1.0-mini').mkdir(parents=True, exist_ok=True)
        for name, rows in {**content, **files}.items():
            (tmp_path / f'set/v1.0-mini/{name}.json').write_text(json.dumps(rows))
        return tmp_path / 'set'
    return make


def faults(tables) -> str:
    with pytest.raises(InputError) as caught:
        check_tables('FOLDER', tables)
    return str(caught.value)


def test_sound_tables_are_sound(tables):
    check_tables('FOLDER', tables)


FIELDS = [(name, field, wanted) for name, fields in TABLES.items() for field, wanted in fields.items()]


@pytest.mark.parametrize('name, field, wanted', FIELDS, ids=[f'{name}.{field}' for name, field, _ in FIELDS])
def test_a_fault_of_any_field_is_named(tables, name, field, wanted):
    refers = isinstance(wanted, Reference)
    for value in WRONG:
        content = copy.deepcopy(tables)
        row = content[name][-1]
        if (value == 'words' and not refers and isinstance(row[field], str)) or (
                value == [] and refers and wanted.several):
            continue  # right
        row[field] = value
        message = faults(content)
        assert f'FOLDER/{name}.json: record {row["token"]}: {field} is' in message or (refers and value == 'words')
        assert 'must be' in message or 'leads nowhere' in message
    if refers:
        row[field] = ['nowhere'] if wanted.several else 'nowhere'
        assert f"record {row['token']}: {field} 'nowhere' leads nowhere: {wanted.table}.json" in faults(content)
    del row[field]
    if wanted.optional:
        check_tables('FOLDER', content)
    else:
        assert f'{name}.json: record {row["token"]}: {field} is missing; it must be' in faults(content)


@pytest.mark.parametrize('name', CAMERA)
def test_what_only_cameras_need(tables, name):
    for field in CAMERA[name]:
        for value in (None, [], '', 0, [[1, 0, 0], [0, 1, 0]], [[0, 0, 0]] * 3):
            content = copy.deepcopy(tables)
            row = content[name][-1]
            row[field] = value
            assert f'{name}.json: record {row["token"]}: {field} is' in faults(content)


CHAINS = {
    'two scenes of one name': (lambda t: t['scene'][1].update(name='scene-0061'),
                               "scene.json: record scene-0103: name 'scene-0061' is that of 2 records"),
    'a token twice': (lambda t: t['ego_pose'].append(t['ego_pose'][0]), 'token .* is that of 2 records'),
    'next of another scene': (lambda t: t['sample'][2].update(next='scene-0103-0'), 'sample.json.*scene-0061-2: next'),
    'a circle': (lambda t: t['sample'][2].update(next='scene-0061-0'), 'sample links|nbr_samples is 3|timestamp'),
    'prev that disagrees': (lambda t: t['sample'][2].update(prev='scene-0061-0'), 'scene-0061-2: prev is'),
    'a sample not linked': (lambda t: [t['sample'][1].update(next=''), t['sample'][2].update(prev='')],
                            'nbr_samples is 3; sample.json links 2 and has 3'),
    'back in time': (lambda t: t['sample'][2].update(timestamp=0), 'scene-0061-2: timestamp 0 is not after'),
    'annotations back in time': (lambda t: t['sample_annotation'][0].update(next='scene-0061-0-0'), 'not after it in'),
    'annotation of another instance': (lambda t: t['sample_annotation'][0].update(
        next=next(row['token'] for row in t['sample_annotation'] if row['instance_token'] == 'scene-0061-1')),
        "whose instance_token is 'scene-0061-1', not 'scene-0061-0'"),
    'two key frames': (lambda t: t['sample_data'].append(dict(t['sample_data'][1], token='again')),
                       'sample_data.json: record again: .* another key frame of CAM_FRONT'),
    'no object': (lambda t: t['sensor'].append('CAM'), "sensor.json: record number 3: the record must be an object"),
    'no list': (lambda t: t.update(instance={}), 'instance.json: record -: the table must be a list'),
    'size 0': (lambda t: t['sample_annotation'][3].update(size=[1, 0, 1]), 'size is .1, 0, 1.; it must be width'),
    'no turn': (lambda t: t['ego_pose'][3].update(rotation=[0, 0, 0, 0]), 'ego_pose.*a quaternion'),
    'numbers as words': (lambda t: t['sample'][0].update(timestamp='1533151603500000'), 'timestamp is .*finite number'),
    'too large': (lambda t: t['ego_pose'][0].update(translation=[10**400, 0, 0]), 'translation is'),
}


@pytest.mark.parametrize('name', CHAINS)
def test_chains_and_values(tables, name):
    change, message = CHAINS[name]
    content = copy.deepcopy(tables)
    change(content)
    with pytest.raises(InputError, match=message):
        check_tables('FOLDER', content)


def test_ten_faults_at_a_time_of_all_tables(altered, tmp_path):
    def change(tables):
        for row in tables['ego_pose']:
            row['rotation'] = None
        del tables['category'][0]['name'], tables['sample'][0]['prev']

    with pytest.raises(InputError, match=r'17 faults, 10 of them:(\n.*){10}$') as caught:
        create_infos(altered(change), 'v1.0-mini', tmp_path / 'out')
    assert 'category.json' in str(caught.value) and 'sample.json' in str(caught.value)
    assert not list((tmp_path / 'out').iterdir())


DAMAGE = {'empty': b'', 'pointer': POINTER, 'cut off': None, 'binary': b'\x80\x04\x95\xff\xfe', 'words': b'<html>',
          'deep': b'[' * 100_000}


@pytest.mark.parametrize('name', DAMAGE)
@pytest.mark.parametrize('file', ['sample_annotation.json', 'classes.json', 'splits.json'])
def test_damaged_tables_are_named(altered, file, name):
    root = altered(lambda tables: None, classes={}, splits={'train': ['scene-0061']})
    path = root / 'v1.0-mini' / file
    path.write_bytes(DAMAGE[name] if DAMAGE[name] is not None else path.read_bytes()[:-1])
    with pytest.raises(UnreadableInput, match=f'{path} .*(copy|unpack|export|fetch)'):
        create_infos(root, 'v1.0-mini')


@pytest.mark.parametrize('file, content', [('classes', ['car']), ('classes', {'vehicle.car': ['car']}),
                                           ('splits', {'train': 'scene-0061'}), ('splits', [])])
def test_own_files_of_another_form(altered, file, content):
    with pytest.raises(InputError, match=f'{file}.json'):
        create_infos(altered(lambda tables: None, **{file: content}), 'v1.0-mini')


def test_names_of_ones_own(altered, capsys):
    """Detection names as categories, attributes of one's own, categories of nobody."""
    def change(tables):
        names = {'vehicle.car': 'car', 'human.pedestrian.adult': 'pedestrian', 'animal': 'deer'}
        for row in tables['category']:
            row['name'] = names.get(row['name'], row['name'])
        tables['attribute'][0]['name'] = 'moving'
        tables['attribute'].append(dict(token='more', name='vehicle.parked'))
        tables['sample_annotation'][0]['attribute_tokens'].append('more')

    root = altered(change)
    infos = load_infos(create_infos(root, 'v1.0-mini')[0])
    said = capsys.readouterr().out
    assert '5 of 27 annotations are of categories without a class: deer 5. ' in said and 'classes.json' in said
    assert 'Attributes that nuScenes does not have count as none: moving 7' in said  # 5 cars, 2 trucks
    labels = [item['bbox_label_3d'] for entry in infos['data_list'] for item in entry['instances']]
    assert {CLASSES.index(name) for name in ('car', 'pedestrian', 'truck')} <= set(labels)
    assert infos['metainfo']['categories'] == {**{name: i for i, name in enumerate(CLASSES)}, 'deer': -1}
    assert {item['attr_name'] for entry in infos['data_list'] for item in entry['instances']} == {
        '', 'vehicle.parked', 'pedestrian.moving'}

    def nothing(tables):
        for i, row in enumerate(tables['category']):
            row['name'] = f'kind {i}'

    with pytest.raises(InputError, match='27 of 27 annotations are of categories without a class.*classes.json'):
        create_infos(altered(nothing), 'v1.0-mini')


@pytest.mark.parametrize('factor, unit', [(1e-6, 'seconds'), (1e-3, 'milliseconds'), (1e3, 'nanoseconds')])
def test_times_of_another_unit(altered, capsys, factor, unit):
    def change(tables, scenes=('scene-0061', 'scene-0103')):
        for name in ('sample', 'sample_data'):
            for row in tables[name]:
                if row['token'].startswith(tuple(scenes)):
                    row['timestamp'] *= factor

    with pytest.raises(InputError, match=f'in 2 of 2 scenes key frames are {.5 * factor:g} s apart.*{unit}'):
        create_infos(altered(change), 'v1.0-mini')
    create_infos(altered(lambda tables: change(tables, ['scene-0103'])), 'v1.0-mini')
    assert f'WARNING: {altered(lambda tables: None)}/v1.0-mini/sample.json: timestamp: in 1 of 2 scenes' in \
        capsys.readouterr().out

    def pictures(tables):
        for row in tables['sample_data']:
            row['timestamp'] *= factor

    with pytest.raises(InputError, match='10 of 10 pictures were taken .* s from their frame'):
        create_infos(altered(pictures), 'v1.0-mini')


def test_no_velocity_at_all_is_said(altered, capsys):
    def change(tables):
        for row in tables['sample_annotation']:
            row.update(prev='', next='')

    create_infos(altered(change), 'v1.0-mini')
    assert 'None of the 16 objects has a velocity' in capsys.readouterr().out


def test_frames_without_cameras_are_counted(altered, capsys):
    def lack(tables, which):
        tables['sample_data'] = [row for row in tables['sample_data'] if row['token'] not in which]

    blind = [f'scene-0061-1-{name}' for name in CAMERAS]
    files = create_infos(altered(lambda tables: lack(tables, [*blind, 'scene-0061-2-CAM_BACK'])), 'v1.0-mini')
    said = capsys.readouterr().out
    assert '1 of 5 frames have no camera and are left out: scene-0061-1' in said
    assert '1 of 5 frames lack cameras (CAM_BACK 1 times): scene-0061-2' in said
    entries = load_infos(files[0])['data_list']
    assert [entry['token'] for entry in entries] == ['scene-0061-0', 'scene-0061-2']
    assert [entry['frame_idx'] for entry in entries] == [0, 2]
    with pytest.raises(InputError, match='2 of 5 samples have no LIDAR_TOP.*: scene-0061-0, scene-0103-1'):
        create_infos(altered(lambda tables: lack(
            tables, ['scene-0061-0-LIDAR_TOP', 'scene-0103-1-LIDAR_TOP'])), 'v1.0-mini')
    with pytest.raises(InputError, match='none of the 5 frames has a key frame of a camera'):
        create_infos(altered(lambda tables: tables.update(sample_data=[
            row for row in tables['sample_data'] if row['calibrated_sensor_token'] == 'cal-LIDAR_TOP'])), 'v1.0-mini')


def test_only_scenes_whose_images_are_there(tmp_path, capsys):
    root = write_nuscenes(tmp_path / 'set', scenes=[('scene-0061', 2), ('scene-0553', 2)], cameras=CAMERAS)
    (root / 'samples/CAM_BACK/scene-0061-1__CAM_BACK.jpg').unlink()
    (file, ) = create_infos(root, 'v1.0-mini', only_existing=True)
    assert {entry['scene_name'] for entry in load_infos(file)['data_list']} == {'scene-0553'}
    assert '1 of 2 scenes are left out: 1 of their images' in capsys.readouterr().out
    for path in root.glob('samples/CAM_BACK/*'):
        path.unlink()
    with pytest.raises(InputError, match='--only-existing: 2 of 2 .* No scene is left'):
        create_infos(root, 'v1.0-mini', only_existing=True)


def test_a_folder_that_takes_no_file_is_found_first(root, tmp_path):
    (tmp_path / 'file').write_text('')
    with mock.patch('georope.datasets.converter.NuScenesTables') as opened:
        with pytest.raises(InputError, match=f'{tmp_path}/file/out cannot be written to'):
            create_infos(root, 'v1.0-mini', tmp_path / 'file/out')
    opened.assert_not_called()


def kitti(**more):
    return dict(metainfo=dict(dataset='kitti', info_version='1.1', categories=dict(Car=0)),
                data_list=[dict(sample_idx=0, images=dict(CAM2=dict(img_path='0.png')), **more)])


INFOS = {
    'empty': (b'', r'is empty \(0 bytes\)'),
    'pointer': (POINTER, 'is a Git LFS pointer.*git lfs pull'),
    'cut off': (pickle.dumps(kitti(), 4)[:-9], 'is cut off'),
    'json': (b'{"results": {}}', 'is no pickle|cannot be unpickled'),
    'an unknown module': (b'cnowhere\nclass\n.', "cannot be unpickled.*nowhere"),
    'results': (pickle.dumps([dict(pred_instances_3d=dict(scores_3d=[]))]), 'predictions: it is a result file'),
    'mmdet3d 0.x': (pickle.dumps(dict(infos=[], metadata={})), 'mmdet3d < 1.1'),
    'kitti': (pickle.dumps(kitti()), r'data_list\[0\]: token is missing.*info file of kitti'),
    'waymo': (pickle.dumps(kitti(timestamp=1, ego2global=[], context_name='x')), r'data_list\[0\]: token is missing'),
    'a list of nothing': (pickle.dumps(dict(metainfo=[], data_list={})), 'metainfo must be a dict'),
    'an array': (pickle.dumps([1, 2]), 'holds a list'),
}


@pytest.mark.parametrize('name', INFOS)
def test_what_is_no_info_file_says_what_it_is(root, tmp_path, name):
    content, message = INFOS[name]
    path = tmp_path / 'infos.pkl'
    path.write_bytes(content)
    with pytest.raises(InputError, match=f'{path}.*({message}).*'):
        update_infos([path], root, 'v1.0-mini')
    assert path.read_bytes() == content and [*tmp_path.iterdir()] == [path]


def test_update_writes_all_files_or_none(root, tmp_path):
    sound = create_infos(root, 'v1.0-mini', tmp_path)
    before = [path.read_bytes() for path in sound]
    other = load_infos(sound[1])
    del other['data_list'][0]['instances'][0]['bbox_3d']
    save_infos(other, sound[1])
    with pytest.raises(InputError, match='infos_val.pkl: sample scene-0103-0: instance 0: bbox_3d is missing'):
        update_infos(sound, root, 'v1.0-mini')
    assert sound[0].read_bytes() == before[0]


def tool(name: str, *arguments) -> None:
    with mock.patch.object(sys, 'argv', [name, *map(str, arguments)]):
        runpy.run_path(str(TOOLS / f'{name}.py'), run_name='__main__')


@pytest.mark.parametrize('content', [b'', POINTER, b'{"results": {"scene-0061-0": [', b'\x80\x04\xff', b'[1]',
                                     b'{"results": {"scene-0061-0": [{"size": 3}]}}', b'{"results": {"x": 3}}'])
def test_no_tool_shows_a_traceback_for_a_users_file(root, tmp_path, content, monkeypatch, capsys):
    bad, out = tmp_path / 'bad.file', tmp_path / 'out'
    bad.write_bytes(content)
    infos = create_infos(root, 'v1.0-mini', tmp_path / 'infos')[0]
    where = ('--data-root', root, '--version', 'v1.0-mini')
    split = ('--task', 'detection', '--split', 'mini_train', *where)
    for name, *arguments in (
            ('create_data', '--root-path', root, '--version', 'v1.0-mini', '--update', bad),
            ('visualize', '--ann-file', bad, '--data-root', root, '--out', out),
            ('visualize', '--ann-file', infos, '--results', bad, '--data-root', root, '--out', out),
            ('track', bad, *where, '--out', out), ('validate_submission', bad, *split),
            ('make_submission', bad, *split, '--out', out / 'x.zip')):
        with pytest.raises(SystemExit) as stopped:
            tool(name, *arguments)
        message = str(stopped.value.code) + capsys.readouterr().out
        assert str(bad) in message and 'Traceback' not in message
        assert not out.exists() or not list(out.iterdir())
    monkeypatch.setenv('GEOROPE_TRACEBACK', '1')
    with pytest.raises(InputError):
        tool('visualize', '--ann-file', bad, '--data-root', root, '--out', out)


GIVEN = {'dangling': "next '79999359e0719197ed3eac6a3d983940' leads nowhere",
         'matrix_rotation': r'calibrated_sensor.json: record \w+: rotation is',
         'lfs_table': 'sample_annotation.json is a Git LFS pointer'}


@pytest.mark.parametrize('name', GIVEN)
def test_given_sets_are_refused(shared, tmp_path, name):
    with pytest.raises(InputError, match=GIVEN[name]):
        create_infos(shared / 'fails' / name, 'tables', tmp_path)
    assert not list(tmp_path.iterdir())


def test_given_sets_that_can_be_read(shared, tmp_path, capsys):
    with pytest.raises(InputError, match='is a Git LFS pointer'):
        load_infos(shared / 'fails/lfs_infos.pkl')
    for name in ('own_names', 'own_attributes', 'no_camera_frame'):
        (file, ) = create_infos(shared / 'fails' / name, 'tables', tmp_path / name)
        infos, said = load_infos(file), capsys.readouterr().out
        assert any(item['bbox_label_3d'] >= 0 for entry in infos['data_list'] for item in entry['instances'])
        assert ('1 of 3 frames have no camera and are left out' in said) == (name == 'no_camera_frame')
        assert 'nuScenes does not have count as none: moving 2' in said
    entry = pickle.loads((shared / 'fails/bicycle_rack.pkl').read_bytes())
    assert len(ground_truth(entry['data_list'][0], entry['metainfo']['categories'])) == 34


def test_missing_folders_are_one_kind_of_error(root, tmp_path):
    with pytest.raises(MissingInput, match='does not exist. Versions under'):
        NuScenesTables(root, 'v1.0-test')
    with pytest.raises(MissingInput, match='create_data.py'):
        load_infos(tmp_path / 'none.pkl')
