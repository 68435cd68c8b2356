"""Scores by distance, visibility, day, night and rain: the devkit's on what belongs to a subset."""
import copy
import json
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from nuscenes.eval.detection.config import config_factory
from nuscenes.eval.detection.evaluate import DetectionEval
from test_devkit_evaluation import write_noisy

from georope.evaluation.devkit import evaluate_results, ground_truth_results
from georope.evaluation.results import write_results
from georope.evaluation.subsets import DISTANCES, MEASURES, evaluate_subsets

TOOL = Path(__file__).resolve().parents[2] / 'tools/evaluate_subsets.py'


@pytest.fixture(scope='module')
def noisy(toy, tmp_path_factory):
    return write_noisy(toy, tmp_path_factory.mktemp('noisy') / 'noisy.json')


@pytest.fixture(scope='module')
def scores(toy, noisy):
    return evaluate_subsets(toy.nusc, noisy, toy.tokens)


def test_nearest_boxes_score_as_with_the_devkits_own_limit(toy, noisy, scores, tmp_path):
    config = config_factory('detection_cvpr_2019')
    config.class_range = {name: min(limit, 20) for name, limit in config.class_range.items()}
    config.class_names = list(scores['distance']['0-20 m']['AP'])
    metrics = DetectionEval(toy.nusc, config, noisy, 'mini_val', str(tmp_path), verbose=False).evaluate()[0]
    expected = (metrics.nd_score, metrics.mean_ap, *metrics.tp_errors.values())
    found = [scores['distance']['0-20 m'][name] for name in MEASURES]
    np.testing.assert_equal(found, expected)
    assert 0.02 < found[1] < 0.9


def test_every_box_is_in_one_bin(scores):
    assert list(scores['distance']) == [f'{near}-{far} m' for near, far in DISTANCES]
    assert sum(own['boxes'] for own in scores['distance'].values()) == scores['all']['all']['boxes'] > 50
    assert sum(own['boxes'] > 0 for own in scores['distance'].values()) >= 3


def test_all_are_the_devkits_numbers_where_all_classes_occur(toy, noisy, scores, tmp_path):
    metrics = evaluate_results(toy.nusc, noisy, toy.tokens, str(tmp_path))
    assert len(scores['all']['all']['AP']) == 10
    assert (scores['all']['all']['NDS'], scores['all']['all']['mAP']) == (metrics.nd_score, metrics.mean_ap)


def tables(toy, conditions=('',), **annotations):
    """The toy's tables with other descriptions of scenes or other visibilities."""
    nusc = copy.copy(toy.nusc)
    nusc.scene = [dict(scene, description=conditions[i % len(conditions)]) for i, scene in enumerate(nusc.scene)]
    nusc.sample_annotation = [dict(record, visibility_token=str(1 + i % 3)) for i, record in
                              enumerate(nusc.sample_annotation)]
    return nusc


def test_visibility(toy, tmp_path):
    """Perfect detections are perfect in every bin, though no bin has all of them; those of a bin left out, it has
    none, and the other bins lose nothing."""
    nusc = tables(toy)
    results = ground_truth_results(toy.nusc, toy.tokens)
    write_results(str(tmp_path / 'all.json'), results)
    bins = evaluate_subsets(nusc, str(tmp_path / 'all.json'), toy.tokens)['visibility']
    assert [bins[name]['boxes'] > 5 for name in bins] == [True, True, True, False]
    assert [bins[name]['mAP'] for name in list(bins)[:3]] == pytest.approx([1, 1, 1])
    assert math.isnan(bins['80-100 %']['mAP'])
    hidden = {(record['sample_token'], *record['translation']) for record in nusc.sample_annotation
              if record['visibility_token'] == '1'}
    write_results(str(tmp_path / 'some.json'), [(token, [
        box for box in boxes if (token, *box['translation']) not in hidden]) for token, boxes in results])
    bins = evaluate_subsets(nusc, str(tmp_path / 'some.json'), toy.tokens)['visibility']
    assert bins['0-40 %']['mAP'] < 0.2 and bins['40-60 %']['mAP'] == bins['60-80 %']['mAP'] == pytest.approx(1)


@pytest.mark.parametrize('description, found', [
    ('Night, rain, trucks', dict(day=0, night=7, dry=0, rain=7)), ('Sunny', dict(day=7, night=0, dry=7, rain=0))])
def test_conditions(toy, noisy, scores, description, found):
    own = evaluate_subsets(tables(toy, [description]), noisy, toy.tokens)['condition']
    assert {name: own[name]['frames'] for name in own} == found
    for name, frames in found.items():
        np.testing.assert_equal(own[name]['mAP'], scores['all']['all']['mAP'] if frames else math.nan)


def test_the_tool_writes_table_numbers_and_plot(toy, noisy, scores, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', [str(TOOL), noisy, '--data-root', toy.nusc.dataroot, '--version', 'v1.0-mini',
                                      '--out', str(tmp_path / 'out')])
    runpy.run_path(str(TOOL), run_name='__main__')
    np.testing.assert_equal(json.loads((tmp_path / 'out/subsets.json').read_text()), scores)
    table = (tmp_path / 'out/subsets.md').read_text()
    assert table in capsys.readouterr().out
    assert f'| all | 7 | {scores["all"]["all"]["boxes"]} | {scores["all"]["all"]["NDS"]:.3f} |' in table
    assert (tmp_path / 'out/subsets.png').read_bytes()[:4] == b'\x89PNG'
