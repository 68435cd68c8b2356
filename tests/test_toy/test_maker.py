"""Making a set: deterministic, never over something else, any number of cameras."""
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from nuscenes import NuScenes

from georope.toy import make_toy_nuscenes
from georope.toy.options import GENERATOR
from georope.toy.rig import CAMERA_CHANNELS

TINY = dict(scenes=(0, 1), samples_per_scene=2, image_size=(48, 80), num_cameras=1, progress=False)


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    return make_toy_nuscenes(tmp_path_factory.mktemp('tiny') / 'set', **TINY)


def content(root: Path) -> dict:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob('*')) if f.is_file()}


def test_same_options_give_the_same_bytes_and_another_seed_others(tiny, tmp_path):
    first, again = content(tiny), content(make_toy_nuscenes(tmp_path / 'again', **TINY))
    assert first == again and any(name.endswith('.jpg') for name in first)
    other = content(make_toy_nuscenes(tmp_path / 'other', **TINY, seed=1))
    assert not set(json.loads(other['v1.0-mini/sample.json'])[0].values()) & set(
        json.loads(first['v1.0-mini/sample.json'])[0].values()) - {''}


def test_a_scene_does_not_depend_on_the_other_scenes(tiny, tmp_path):
    more = content(make_toy_nuscenes(tmp_path / 'more', **{**TINY, 'scenes': (1, 1)}))
    for name, data in content(tiny).items():
        if name.startswith('samples'):
            assert more[name] == data


def test_finished_set_is_kept(tiny, capsys):
    before = (tiny / 'v1.0-mini/sample.json').stat().st_mtime_ns
    assert make_toy_nuscenes(tiny, **{**TINY, 'progress': True}) == tiny
    assert 'kept' in capsys.readouterr().err
    assert (tiny / 'v1.0-mini/sample.json').stat().st_mtime_ns == before


def test_other_options_need_overwrite(tmp_path):
    root = make_toy_nuscenes(tmp_path / 'set', **TINY)
    with pytest.raises(FileExistsError, match='--overwrite'):
        make_toy_nuscenes(root, **TINY, seed=5)
    make_toy_nuscenes(root, **TINY, seed=5, overwrite=True)
    assert json.loads((root / 'toy_options.json').read_text())['seed'] == 5
    assert [p.name for p in tmp_path.iterdir()] == ['set']


@pytest.mark.parametrize('overwrite', [False, True])
def test_foreign_folder_is_never_touched(tmp_path, overwrite):
    (tmp_path / 'real').mkdir()
    (tmp_path / 'real/precious').write_text('data')
    with pytest.raises(FileExistsError, match='not a toy set'):
        make_toy_nuscenes(tmp_path / 'real', **TINY, overwrite=overwrite)
    assert (tmp_path / 'real/precious').read_text() == 'data'


def test_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr('georope.toy.maker._write_map', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_toy_nuscenes(tmp_path / 'set', **TINY)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('bad, message', [
    (dict(scenes=(9, 1)), 'mini splits'), (dict(scenes=(0, 0)), 'scenes'), (dict(samples_per_scene=0), 'samples'),
    (dict(image_size=(8, 8)), 'image_size'), (dict(num_cameras=0), 'num_cameras'), (dict(seed=-1), 'seed'),
    (dict(num_cameras=13), 'num_cameras'), (dict(edge_cases=('no_such',)), 'no_such'), (dict(scenes=(1,)), 'scenes'),
    (dict(samples_per_scene=1, edge_cases=('time_gap',)), 'time_gap')])
def test_bad_options_name_themselves(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        make_toy_nuscenes(tmp_path / 'set', **{**TINY, **bad})
    assert not (tmp_path / 'set').exists()


@pytest.mark.parametrize('number', [1, 7])
def test_number_of_cameras(tmp_path, number):
    root = make_toy_nuscenes(tmp_path / 'set', **{**TINY, 'num_cameras': number})
    nusc = NuScenes(version='v1.0-mini', dataroot=str(root), verbose=False)
    assert set(nusc.sample[0]['data']) == {'LIDAR_TOP', *CAMERA_CHANNELS[:number]}
    assert CAMERA_CHANNELS[6] == 'CAM_EXTRA_0'
    for channel in CAMERA_CHANNELS[:number]:
        path, _, intrinsic = nusc.get_sample_data(nusc.sample[0]['data'][channel])
        assert Path(path).is_file()
        focal = 809 if channel == 'CAM_BACK' else 1000 if 'EXTRA' in channel else 1266
        assert np.allclose(np.diag(intrinsic)[:2], focal * np.array([80 / 1600, 48 / 900]), rtol=0.03)


def test_command_line(tmp_path, monkeypatch, capsys):
    tool = str(Path(__file__).parents[2] / 'tools/make_toy_nuscenes.py')
    command = [tool, str(tmp_path / 'set'), '--scenes', '0', '1', '--samples-per-scene', '2', '--num-cameras', '1',
               '--image-size', '48', '80', '--seed', '3', '--edge-cases', 'zero_points']
    monkeypatch.setattr(sys, 'argv', command)
    runpy.run_path(tool, run_name='__main__')
    assert str(tmp_path / 'set') in capsys.readouterr().out
    options = json.loads((tmp_path / 'set/toy_options.json').read_text())
    assert options == dict(generator=GENERATOR, scenes=[0, 1], samples_per_scene=2, image_size=[48, 80], seed=3,
                           num_cameras=1, edge_cases=['zero_points'])
    monkeypatch.setattr(sys, 'argv', command[:-2])
    with pytest.raises(FileExistsError, match='--overwrite'):
        runpy.run_path(tool, run_name='__main__')
    monkeypatch.setattr(sys, 'argv', [*command[:-2], '--overwrite'])
    runpy.run_path(tool, run_name='__main__')
    assert json.loads((tmp_path / 'set/toy_options.json').read_text())['edge_cases'] == []
