"""tools/evaluate_robustness.py on a small PETR + URoPE with random weights and three toy frames."""
import json
import shutil
from pathlib import Path
from unittest import mock

import cv2
import pytest
import torch
from launching import TOOLS, main
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from georope.datasets.converter import create_infos
from georope.registry import MODELS
from georope.toy import make_toy_nuscenes

CONFIG = '''
_base_ = ['{configs}/toy/petr-urope_toy.py']
data_root = '{root}/'
load_from = None
model = dict(pts_bbox_head=dict(num_query=10, decoder=dict(num_layers=1)))
loader = dict(num_workers=0, persistent_workers=False)
test_dataloader = dict(dataset=dict(data_root=data_root), **loader)
test_evaluator = dict(data_root=data_root, ann_file=f'{{data_root}}/nuscenes_infos_val.pkl',
                      jsonfile_prefix='{results}')
'''


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('robustness')
    root = make_toy_nuscenes(folder / 'toy', scenes=(1, 1), samples_per_scene=3, image_size=(112, 200), num_cameras=2,
                             progress=False)
    create_infos(str(root), 'v1.0-mini')
    path = folder / 'small.py'
    path.write_text(CONFIG.format(configs=TOOLS.parent / 'configs', root=root, results=folder / 'results'))
    return path


NO_TRACKING = ['--cfg-options', 'test_evaluator.tracking=None']  # which takes the devkit seconds


def save_weights(config, path, seed=0) -> Path:
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope('mmdet3d'):
        model = MODELS.build(Config.fromfile(config).model)
    model.init_weights()
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


@pytest.fixture(scope='module')
def checkpoint(config) -> Path:
    return save_weights(config, config.with_name('random.pth'))


def evaluate(*arguments, test=Runner.test) -> int:
    """Runs the tool; how many tests it ran."""
    with mock.patch.object(Runner, 'test', autospec=True, side_effect=test) as test:
        main('evaluate_robustness', *arguments)
    return test.call_count


def records(work_dir) -> list:
    return json.loads((work_dir / 'robustness.json').read_text())['results']


def detections(folder) -> dict:
    return json.loads((folder / 'results_nusc.json').read_text())['results']


def test_scores_settings_and_goes_on(config, checkpoint, tmp_path):
    arguments = config, checkpoint, '--work-dir', tmp_path, '--kinds', 'dropout', '--severities'
    real = Runner.test
    with pytest.raises(KeyboardInterrupt), mock.patch.object(
            Runner, 'test', autospec=True, side_effect=lambda runner: stop_at('dropout2', runner, real)):
        main('evaluate_robustness', *arguments, 0, 1, 2, *NO_TRACKING)
    assert [(entry['kind'], entry['severity']) for entry in records(tmp_path)] == [('', 0), ('dropout', 1)]
    assert evaluate(*arguments, 2, 0, 1, *NO_TRACKING) == 1  # what was missing
    assert [(entry['kind'], entry['severity'], entry['seed']) for entry in records(tmp_path)] == [
        ('', 0, 0), ('dropout', 1, 0), ('dropout', 2, 0)]
    assert all({'NDS', 'mAP'} <= set(entry['metrics']) for entry in records(tmp_path))
    table = (tmp_path / 'robustness.md').read_text()
    assert '| black cameras | small NDS | small mAP |' in table
    assert [line.split(' | ')[0] for line in table.splitlines()[4:7]] == ['| 0', '| 1', '| 2']
    assert cv2.imread(str(tmp_path / 'robustness.png')).std() > 5

    # severity 0 is what tools/test.py finds, to the bit, and perturbed results stay out of the config's own folder
    results = config.parent / 'results'
    assert not results.exists()
    main('test', config, checkpoint, '--work-dir', tmp_path / 'test', *NO_TRACKING)
    clean = detections(results)
    assert clean == detections(tmp_path / 'small_0')
    one, two = (detections(tmp_path / f'small_dropout{number}') for number in (1, 2))
    assert len({json.dumps(boxes) for boxes in (clean, one, two)}) == 3

    # a seed is another setting, but for severity 0; other weights are another model, a copy of the same ones is not:
    # which tests are run counts here, not what they find
    other, copied = save_weights(config, tmp_path / 'other.pth', seed=1), shutil.copy(checkpoint, tmp_path / 'copy.pth')
    assert evaluate(config, other, config, copied, *arguments[2:], 1, '--seed', 5, *NO_TRACKING,
                    test=lambda runner: {'nuscenes/NDS': .5}) == 2 + 1
    assert [(entry['severity'], entry['seed'], entry['checkpoint']) for entry in records(tmp_path)[3:]] == [
        (0, 0, str(other)), (1, 5, str(other)), (1, 5, str(copied))]
    table = (tmp_path / 'robustness.md').read_text()
    assert f'small ({other}) NDS' in table and f'small ({copied}) NDS' in table


def test_scores_tracks_where_the_config_tracks(config, checkpoint, tmp_path):
    assert evaluate(config, checkpoint, '--work-dir', tmp_path, '--kinds', 'zoom', '--severities', 0) == 1
    assert {'NDS', 'mAP', 'AMOTA', 'IDS'} <= set(records(tmp_path)[0]['metrics'])
    assert '| small NDS | small mAP | small AMOTA |' in (tmp_path / 'robustness.md').read_text()


def stop_at(setting, runner, real):
    if Path(runner.work_dir).name.endswith(setting):
        raise KeyboardInterrupt
    return real(runner)


@pytest.mark.parametrize('arguments, message', [
    (['--kinds', 'fog'], "invalid choice: 'fog'"),
    (['--severities', '1'], '--severities needs one kind'),
    (['--kinds', 'delay', '--severities', '.5', '2'], 'severity=2.0 of delay'),
    (['{config}'], 'each config needs a checkpoint'),
])
def test_refuses_in_one_line(config, checkpoint, capsys, arguments, message):
    arguments = [str(config) if part == '{config}' else part for part in arguments]
    with mock.patch.object(Runner, 'test') as test, pytest.raises(SystemExit):
        main('evaluate_robustness', config, checkpoint, *arguments)
    assert message in capsys.readouterr().err and not test.called
