"""Robustness: settings, fingerprints, the file of scores, table and plot."""
import json
from unittest import mock

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure
from mmengine.config import Config

from georope.evaluation.robustness import (
    Scores,
    Setting,
    fingerprint,
    perturb,
    settings_of,
    severity_table,
)
from georope.visualization.severity import plot_severity

KINDS = dict(zoom=(-.5, 1), rotation=(0, 2, 2))
MODELS = {'petr': 'aaa', 'petr-urope': 'bbb'}


@pytest.fixture
def scores(tmp_path) -> Scores:
    """NDS .5 minus a tenth of the severity, mAP half of it, AMOTA unknown for one model."""
    scores = Scores(str(tmp_path / 'scores.json'))
    for model in MODELS.values():
        for setting in settings_of(model, KINDS, 3):
            metrics = {'nuscenes/NDS': .5 - setting.severity / 10, 'nuscenes/mAP': .25 - setting.severity / 20}
            if model == 'bbb':
                metrics['nuscenes/AMOTA'] = np.nan
            scores.add(setting, metrics, 'config.py', 'a.pth')
    return scores


def test_settings_are_each_once_and_clean_is_shared():
    assert settings_of('aaa', KINDS, 3) == [
        Setting('aaa', '', 0, 0), Setting('aaa', 'zoom', -.5, 3), Setting('aaa', 'zoom', 1, 3),
        Setting('aaa', 'rotation', 2, 3)]


def test_the_file_gives_back_what_it_took(scores):
    scores.save()
    again = Scores(scores.path)
    for setting in settings_of('bbb', KINDS, 3):
        assert setting in again and Setting('ccc', *setting[1:]) not in again
        assert again.value(setting, 'NDS') == scores.value(setting, 'NDS')
        assert again.value(setting, 'AMOTA') is None
    assert json.load(open(scores.path))['results'][0] == dict(
        model='aaa', kind='', severity=0, seed=0, config='config.py', checkpoint='a.pth', metrics=dict(NDS=.5, mAP=.25))


def test_scores_without_ours_are_refused(scores):
    with pytest.raises(ValueError, match='config.py: test_evaluator gives .*count'):
        scores.add(Setting('aaa', '', 0, 0), {'tiny/count': 3}, 'config.py', 'a.pth')


def test_table(scores):
    assert severity_table(scores, MODELS, KINDS, 3) == '''\
### zoom

| focal length, relative change | petr NDS | petr mAP | petr AMOTA | petr-urope NDS | petr-urope mAP \
| petr-urope AMOTA |
|---|---:|---:|---:|---:|---:|---:|
| -0.5 | 0.550 | 0.275 | - | 0.550 | 0.275 | - |
| 0 | 0.500 | 0.250 | - | 0.500 | 0.250 | - |
| 1 | 0.400 | 0.200 | - | 0.400 | 0.200 | - |

### rotation

| degrees, standard deviation per axis | petr NDS | petr mAP | petr AMOTA | petr-urope NDS | petr-urope mAP \
| petr-urope AMOTA |
|---|---:|---:|---:|---:|---:|---:|
| 0 | 0.500 | 0.250 | - | 0.500 | 0.250 | - |
| 2 | 0.300 | 0.150 | - | 0.300 | 0.150 | - |
'''


def test_fingerprint_changes_with_config_and_weights(tmp_path):
    weights, others = tmp_path / 'a.pth', tmp_path / 'b.pth'
    weights.write_bytes(b'1')
    others.write_bytes(b'2')
    config = dict(model=dict(type='A'), work_dir='here')
    prints = [fingerprint(Config(dict(config, **changes)), str(path)) for changes, path in (
        ({}, weights), (dict(work_dir='there', launcher='pytorch'), weights), (dict(data_root='x'), weights),
        ({}, others), ({}, 'https://host/a.pth'))]
    assert prints[0] == prints[1] and len(set(prints)) == 4


@pytest.mark.parametrize('kept', [True, False])
def test_the_perturbation_stands_before_the_loader(kept):
    pipeline = [dict(type='georope.ImageAug'), dict(type='georope.LoadCameraImages' if kept else 'Own'), dict(type='P')]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    if kept:
        perturb(cfg, 'zoom', .5, 3)
        assert cfg.test_dataloader.dataset.pipeline == [
            pipeline[0], dict(type='georope.PerturbCameras', kind='zoom', severity=.5, seed=3), *pipeline[1:]]
    else:
        with pytest.raises(ValueError, match=r"pipeline has the steps \['ImageAug', 'Own', 'P'\]"):
            perturb(cfg, 'zoom', .5, 3)


def test_plot_cuts_no_curve_off(scores, tmp_path):
    """A later kind may score higher than the first: all marks of a row lie within its range."""
    with mock.patch('matplotlib.figure.Figure.savefig', autospec=True, side_effect=Figure.savefig) as save:
        plot_severity(scores, MODELS, dict(rotation=KINDS['rotation'], zoom=KINDS['zoom']), 3, str(tmp_path / 'a.png'))
    for axes in save.call_args.args[0].axes:
        values = np.concatenate([line.get_ydata() for line in axes.lines])
        bottom, top = axes.get_ylim()
        assert bottom == 0 and not (values >= top).any()
    picture = cv2.imread(str(tmp_path / 'a.png'))
    assert picture.shape[0] > 700 and picture.shape[1] > 700 and picture.std() > 5
    assert [path.name for path in tmp_path.iterdir()] == ['a.png']
