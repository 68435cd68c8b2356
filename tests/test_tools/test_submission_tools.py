"""tools/track.py, make_submission.py and validate_submission.py on the ground truth of a small toy set."""
import json
import runpy
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest
from launching import TOOLS

from georope.evaluation import ground_truth_results, open_tables, write_results
from georope.evaluation.scenes import split_frames
from georope.toy import make_toy_nuscenes

FLAGS = dict(use_camera=True, use_lidar=False, use_radar=False, use_map=False, use_external=False)


def call(tool: str, *arguments) -> None:
    """The tool as a user starts it, in this process: importing mmdet3d takes seconds."""
    with mock.patch.object(sys, 'argv', [tool, *map(str, arguments)]):
        runpy.run_path(str(TOOLS / f'{tool}.py'), run_name='__main__')


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    return make_toy_nuscenes(tmp_path_factory.mktemp('toy') / 'set', scenes=(1, 1), samples_per_scene=4, num_cameras=1,
                             image_size=(90, 160), progress=False)


@pytest.fixture(scope='module')
def detections(root) -> Path:
    """Ground truth of mini_val as detections."""
    tokens = [frame.token for frames in split_frames('mini_val', str(root)).values() for frame in frames]
    path = root / 'results_nusc.json'
    write_results(str(path), ground_truth_results(open_tables('v1.0-mini', str(root), tokens), tokens))
    return path


def options(root, task, split='mini_val') -> list:
    return ['--task', task, '--split', split, '--data-root', root]


def test_from_detections_to_both_submissions(root, detections, tmp_path, capsys):
    call('track', detections, '--data-root', root, '--version', 'v1.0-mini', '--out', tmp_path)
    said = capsys.readouterr().out
    assert 'tracks of 1 scenes, 4 frames' in said and 'score cut 0.25' in said and 'AMOTP 2.000 thus means' in said
    summary = json.loads((tmp_path / 'tracking_metrics_summary.json').read_text())
    assert summary['amota'] > .9
    call('track', '--ground-truth', 'mini_val', '--data-root', root, '--version', 'v1.0-mini', '--out', tmp_path / 'gt')
    capsys.readouterr()
    assert (tmp_path / 'gt/tracking_nusc.json').read_bytes() == (tmp_path / 'tracking_nusc.json').read_bytes()
    for task, file in (('detection', detections), ('tracking', tmp_path / 'tracking_nusc.json')):
        out = tmp_path / f'{task}.zip'
        call('make_submission', file, *options(root, task), '--out', out)
        said = capsys.readouterr().out
        assert 'Note: the tables lack 1 of the 2 scenes of mini_val, e.g. scene-0916' in said
        assert '4 samples' in said and 'meta: use_camera' in said and 'MB, ready for mini_val' in said
        assert ('0.5 s of past data' if task == 'detection' else 'of the current scene') in said
        with zipfile.ZipFile(out) as archive:
            assert archive.namelist() == [f'{task}_mini_val.json']
            content = json.loads(archive.read(f'{task}_mini_val.json'))
        assert content == json.loads(file.read_text()) and content['meta'] == FLAGS
        for valid in (file, out):
            call('validate_submission', valid, *options(root, task))
            assert f'a valid {task} submission for mini_val' in capsys.readouterr().out
    assert not list(tmp_path.glob('*.part'))


def test_options_of_the_tracker(root, detections, tmp_path, capsys):
    call('track', detections, '--data-root', root, '--version', 'v1.0-mini', '--out', tmp_path, '--gate', '2',
         'pedestrian=.5', '--score-thr', '1.5', '--max-age', '1', '--assignment', 'hungarian', '--compat')
    said = capsys.readouterr().out
    assert 'hungarian tracker, compat, score cut 1.5, gate bicycle 2 m' in said and 'pedestrian 0.5 m' in said
    assert 'age 1' in said and not any(json.loads((tmp_path / 'tracking_nusc.json').read_text())['results'].values())


def test_no_faulty_detections_are_tracked(root, detections, tmp_path, capsys):
    """A NaN score is below no score cut: the box would be gone without a word."""
    content = json.loads(detections.read_text())
    token = next(token for token, boxes in content['results'].items() if len(boxes) > 1)
    content['results'][token][1].update(detection_score=float('nan'), detection_name='tram')
    content['results']['other'] = []
    (tmp_path / 'faulty.json').write_text(json.dumps(content))
    with pytest.raises(SystemExit, match='3 violations, not tracked'):
        call('track', tmp_path / 'faulty.json', '--data-root', root, '--version', 'v1.0-mini', '--out', tmp_path)
    said = capsys.readouterr().out
    assert f'sample {token}, box 1: detection_score' in said and 'sample other: ' in said
    assert not (tmp_path / 'tracking_nusc.json').exists()


def test_no_detections_at_all(root, detections, tmp_path, capsys):
    """Of two frames: neither the others nor boxes are missed."""
    tokens = list(json.loads(detections.read_text())['results'])[:2]
    write_results(str(tmp_path / 'none.json'), [(token, []) for token in tokens])
    call('track', tmp_path / 'none.json', '--data-root', root, '--version', 'v1.0-mini', '--out', tmp_path)
    said = capsys.readouterr().out
    assert '1 scenes, 2 frames' in said and 'all                      0.000   2.000' in said


def test_flags_are_what_the_method_used(root, detections, tmp_path, capsys):
    wrong = json.loads(detections.read_text())
    del wrong['meta']
    (tmp_path / 'no_meta.json').write_text(json.dumps(wrong))
    out = tmp_path / 'out.zip'
    call('make_submission', tmp_path / 'no_meta.json', *options(root, 'detection'), '--out', out, '--uses', 'camera',
         'external')
    with zipfile.ZipFile(out) as archive:
        meta = json.loads(archive.read('detection_mini_val.json'))['meta']
    assert meta == dict(FLAGS, use_external=True)
    assert 'meta: use_camera, use_external' in capsys.readouterr().out


def test_a_faulty_file_is_shown_and_not_packed(root, detections, tmp_path, capsys):
    content = json.loads(detections.read_text())
    token = next(token for token, boxes in content['results'].items() if len(boxes) > 1)
    content['results'][token][1]['size'] = [0, 1, 1]
    (tmp_path / 'faulty.json').write_text(json.dumps(content))
    for tool, more in (('validate_submission', []), ('make_submission', ['--out', tmp_path / 'out.zip'])):
        with pytest.raises(SystemExit, match='1 violations'):
            call(tool, tmp_path / 'faulty.json', *options(root, 'detection'), *more)
        assert f'size: 1\n    sample {token}, box 1: size must be positive' in capsys.readouterr().out
    with pytest.raises(SystemExit, match='violations'):
        call('make_submission', detections, *options(root, 'detection'), '--max-mb', 1e-4,
             '--out', tmp_path / 'out.zip')
    assert not (tmp_path / 'out.zip').exists() and not list(tmp_path.glob('*.part'))
    with pytest.raises(SystemExit):
        call('make_submission', detections, *options(root, 'detection'), '--out', tmp_path / 'out.json')
    assert 'the server takes a .zip' in capsys.readouterr().err


def test_the_split_decides_which_samples_belong(root, detections, capsys):
    with pytest.raises(SystemExit, match='8 violations'):
        call('validate_submission', detections, *options(root, 'detection', 'mini_train'))
    said = capsys.readouterr().out
    assert 'missing_sample: 4' in said and 'foreign_sample: 4' in said
    with pytest.raises(SystemExit, match='v1.0-trainval'):
        call('validate_submission', detections, *options(root, 'detection', 'val'))


def test_the_test_split_and_custom_splits(root, detections, tmp_path, capsys):
    """Of the tables only scene.json and sample.json are read, as there are no annotations of the test split."""
    scenes = json.loads((root / 'v1.0-mini/scene.json').read_text())
    (tmp_path / 'v1.0-test').mkdir()
    (tmp_path / 'v1.0-test/sample.json').write_bytes((root / 'v1.0-mini/sample.json').read_bytes())
    names = {'scene-0103': 'scene-0077', 'scene-0061': 'scene-0078'}  # of mini_val and mini_train, both now of test
    (tmp_path / 'v1.0-test/scene.json').write_text(json.dumps([dict(s, name=names[s['name']]) for s in scenes]))
    (tmp_path / 'v1.0-test/splits.json').write_text(json.dumps(dict(one=['scene-0077'], none=['scene-0001'])))
    with pytest.raises(SystemExit, match='4 violations'):
        call('validate_submission', detections, *options(tmp_path, 'detection', 'test'))
    assert 'lack 148 of the 150 scenes of test' in capsys.readouterr().out
    call('validate_submission', detections, *options(tmp_path, 'detection', 'one'), '--version', 'v1.0-test')
    said = capsys.readouterr().out
    assert 'valid detection submission for one' in said and 'Note' not in said
    for split, more, match in (('one', [], 'say the version'), ('two', ['--version', 'v1.0-test'], 'no split .two.'),
                               ('none', ['--version', 'v1.0-test'], 'none of the 1 scenes')):
        with pytest.raises(SystemExit, match=match):
            call('validate_submission', detections, *options(tmp_path, 'detection', split), *more)
