"""The devkit's tracking evaluation on ours, against its own on a named split, and through the metric."""
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.tracking.evaluate import TrackingEval
from perfect_detector import empty, predict, run, write_infos

from georope.evaluation import (
    Tracker,
    evaluate_tracks,
    ground_truth_results,
    track_results,
    tracking_summary,
    tracking_table,
    write_results,
)
from georope.evaluation.scenes import scenes_of
from georope.evaluation.tracker import TRACKING_NAMES


def score(tables, detections, folder, tokens=None, tracker=None, processes=None):
    """Detections of some frames through tracker and devkit."""
    tokens, path = tokens or tables.tokens, str(folder / 'tracking.json')
    scenes = scenes_of(tables.nusc.version, tables.nusc.dataroot, tokens)
    write_results(path, track_results(detections.__getitem__, scenes, tracker or Tracker()))
    return evaluate_tracks(tables.nusc, path, tokens, str(folder), processes=processes)


def truth(tables) -> dict:
    return dict(ground_truth_results(tables.nusc, tables.tokens))


def same_as_the_devkit(tables, ours, folder) -> None:
    """All metrics, and for each class and recall the data behind them."""
    evaluation = TrackingEval(config_factory('tracking_nips_2019'), str(folder / 'tracking.json'), 'mini_val',
                              str(folder / 'theirs'), 'v1.0-mini', tables.nusc.dataroot, verbose=False)
    metrics, details = evaluation.evaluate()
    np.testing.assert_equal({**ours.serialize(), 'eval_time': 0}, {**metrics.serialize(), 'eval_time': 0})
    np.testing.assert_equal(json.loads((folder / 'tracking_metrics_details.json').read_text()), details.serialize())


@pytest.mark.parametrize('name, processes', [('toy', 1), ('toy', 2), ('mini_val', 1)])
def test_the_numbers_are_the_devkits_own(request, tmp_path, log, name, processes):
    """Moved and invented boxes. Scores of cars are real-valued; each costs the devkit a round over all frames, so on
    real tables the other classes have one."""
    tables, rng = request.getfixturevalue(name), np.random.default_rng(0)
    detections = truth(tables)
    for boxes in detections.values():
        boxes += [dict(box) for box in boxes[::5]]
        for box in boxes:
            box['translation'] = (np.array(box['translation']) + rng.normal(0, .8, 3)).tolist()
            box['detection_score'] = rng.beta(3, 2) if name == 'toy' or box['detection_name'] == 'car' else .5
    ours = score(tables, detections, tmp_path, processes=processes)
    same_as_the_devkit(tables, ours, tmp_path)
    assert 0.05 < ours.compute_metric('amota') < 0.95 and ours.compute_metric('ids') > 0
    summary = json.loads((tmp_path / 'tracking_metrics_summary.json').read_text())
    assert summary['amota'] == ours.compute_metric('amota') and summary['meta']['use_camera'] is True
    details = json.loads((tmp_path / 'tracking_metrics_details.json').read_text())
    assert set(details) == set(TRACKING_NAMES) and len(np.unique(details['car']['confidence'])) > 5
    assert np.isnan(details['car']['recall']).any() or name == 'toy'  # recalls that are not reached
    assert 'tracks of class car: ' in log()  # progress


def test_ground_truth_of_mini_val(mini_val, tmp_path):
    """What is lost is mostly objects without a point for more than three frames: the tracker gives them up."""
    metrics = score(mini_val, truth(mini_val), tmp_path)
    assert metrics.compute_metric('amota') > 0.97
    same_as_the_devkit(mini_val, metrics, tmp_path)


def test_an_evaluation_that_fails_keeps_what_was_written(toy, log, monkeypatch):
    """Detections are written and logged before the tracking evaluation starts, and survive its failure."""
    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr('georope.evaluation.nuscenes_metric.evaluate_tracks', fail)
    with pytest.raises(MemoryError):
        run(toy.samples, tracking=dict(), **toy.options)
    assert 'mAP, mATE .. mAAE' in log()
    folder = Path(re.search('is kept in (.*)', log())[1])
    assert set(json.loads((folder / 'results_nusc.json').read_text())['results']) == set(toy.tokens)
    assert (folder / 'tracking_nusc.json').is_file()
    shutil.rmtree(folder)


def test_ground_truth_of_the_toy_world(toy, tmp_path, log):
    metrics = run(toy.samples, tracking=dict(), jsonfile_prefix=str(tmp_path), **toy.options)
    assert metrics['nuscenes/AMOTA'] > 0.9 and metrics['nuscenes/mAP'] == pytest.approx(1, abs=1e-6)
    assert {f'nuscenes/{key}' for key in ('AMOTA', 'AMOTP', 'recall', 'MOTA', 'MOTP', 'IDS', 'FRAG')} < set(metrics)
    assert {path.name for path in tmp_path.iterdir()} == {
        'results_nusc.json', 'metrics_summary.json', 'metrics_details.json', 'tracking_nusc.json',
        'tracking_metrics_summary.json', 'tracking_metrics_details.json'}
    assert 'greedy tracker, score cut 0.25, gate 2.5 m, age 3' in log() and 'AMOTP 2.000 thus means' in log()
    boxes = json.loads((tmp_path / 'tracking_nusc.json').read_text())['results']
    assert set(boxes) == set(toy.tokens)
    assert all(isinstance(box['tracking_id'], str) for frame in boxes.values() for box in frame)


def test_the_order_of_frames_does_not_matter(toy, tmp_path):
    shuffled = write_infos(tmp_path / 'shuffled.pkl', [toy.tokens[i] for i in (2, 0, 6, 3, 5, 1, 4)])
    options = dict(toy.options, tracking=dict(), format_only=True)
    run(toy.samples, jsonfile_prefix=str(tmp_path / 'a'), **options)
    run(toy.samples[::-1], jsonfile_prefix=str(tmp_path / 'b'), **dict(options, ann_file=shuffled))
    assert (tmp_path / 'a/tracking_nusc.json').read_bytes() == (tmp_path / 'b/tracking_nusc.json').read_bytes()


def test_part_of_the_frames(toy, tmp_path):
    """Frames that are not scored do not exist: ground truth is not interpolated into them."""
    metrics = score(toy, truth(toy), tmp_path, toy.tokens[::3])
    assert metrics.compute_metric('fn') == 0 and metrics.compute_metric('recall') > 0


def test_no_tracks_at_all_score_the_worst(toy, tmp_path, log):
    """Neither AMOTP 2 nor an empty class is a crash; the devkit would stop at a file without boxes."""
    metrics = run([empty(token) for token in toy.tokens], tracking=dict(), **toy.options)
    assert metrics['nuscenes/AMOTA'] == metrics['nuscenes/MOTA'] == metrics['nuscenes/recall'] == 0
    assert metrics['nuscenes/AMOTP'] == metrics['nuscenes/MOTP'] == 2


def test_no_true_positive_scores_like_no_tracks(toy, tmp_path):
    hopeless = [predict(sample.token, sample.lidar2global, [[30., 30, 0, 4, 2, 2, 0, 0, 0]], [.9], [0])
                for sample in toy.samples]
    metrics = run(hopeless, tracking=dict(), **toy.options)
    nothing = run([empty(token) for token in toy.tokens], tracking=dict(), **toy.options)
    for key in ('AMOTA', 'AMOTP', 'MOTA', 'MOTP', 'recall'):
        assert metrics[f'nuscenes/{key}'] == nothing[f'nuscenes/{key}']


@pytest.mark.parametrize('value', [.3, .1 + .2, 1.])
def test_constant_scores(toy, tmp_path, value):
    detections = truth(toy)
    for boxes in detections.values():
        for box in boxes:
            box['detection_score'] = value
    assert score(toy, detections, tmp_path).compute_metric('amota') > 0.9


def test_frames_without_tracked_classes_have_no_value(toy, tmp_path):
    token = toy.tokens[1]  # the empty frame
    metrics = score(toy, truth(toy), tmp_path, [token])
    assert np.isnan(tracking_summary(metrics)['AMOTA']) and 'all                          -' in tracking_table(metrics)


def test_the_score_cut_costs_recall(toy, tmp_path):
    """Half of the boxes of each object's score are below the cut: AMOTA is not the detector's fault alone."""
    detections = truth(toy)
    for boxes in detections.values():
        for i, box in enumerate(boxes):
            box['detection_score'] = .2 if i % 2 else .8
    cut = tracking_summary(score(toy, detections, tmp_path))
    free = tracking_summary(score(toy, detections, tmp_path, tracker=Tracker(score_threshold=0.)))
    assert cut['AMOTA'] < .7 < .9 < free['AMOTA'] and cut['AMOTP'] > free['AMOTP']


def test_format_only_needs_two_tables(toy, tmp_path):
    """The test split has no annotations; of its tables the tracker reads scene.json and sample.json."""
    (tmp_path / 'root/v1.0-test').mkdir(parents=True)
    for name in ('scene', 'sample'):
        shutil.copy(f'{toy.nusc.dataroot}/v1.0-mini/{name}.json', tmp_path / 'root/v1.0-test')
    ann_file = write_infos(tmp_path / 'test.pkl', toy.tokens, version='v1.0-test')
    options = dict(ann_file=ann_file, tracking=dict(), jsonfile_prefix=str(tmp_path / 'out'))
    assert run(toy.samples, data_root=str(tmp_path / 'root'), **options) == {}
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'results_nusc.json', 'tracking_nusc.json'}
    with pytest.raises(FileNotFoundError, match='scene.json'):
        run(toy.samples, data_root='/nowhere', **options)


def test_unfit_tracking_options_fail_at_once(toy):
    with pytest.raises(ValueError, match=r"gates for \['cone'\]"):
        run(toy.samples, tracking=dict(gates=dict(cone=1.)), **toy.options)
