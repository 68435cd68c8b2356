import copy
import json
import pickle
import time
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from mmengine.evaluator import BaseMetric
from perfect_detector import CLASSES, empty, predict, run, write_infos

from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos
from georope.evaluation import NuScenesMetric
from georope.evaluation.partial import load_done

CAR = [10., 20., 1., 4., 2., 1.5, 0.3, 3., 4.]


def test_perfect_detector_on_mini_val(mini_val, tmp_path, log):
    """Seven of the ten classes occur; the velocity-based guess of the attributes is all that is not perfect."""
    metrics = run(mini_val.samples, jsonfile_prefix=str(tmp_path), **mini_val.options)
    assert metrics['nuscenes/mAP'] == pytest.approx(0.7, abs=1e-6)
    occurring = {name for name in CLASSES if metrics[f'nuscenes/{name}_AP'] > 0}
    assert len(occurring) == 7
    assert all(metrics[f'nuscenes/{name}_AP'] == pytest.approx(1, abs=1e-6) for name in occurring)
    summary = json.loads((tmp_path / 'metrics_summary.json').read_text())
    assert metrics['nuscenes/NDS'] == summary['nd_score'] and metrics['nuscenes/mAP'] == summary['mean_ap']
    errors = [summary['label_tp_errors'][name] for name in occurring - {'traffic_cone', 'barrier'}]
    for key in ('trans_err', 'scale_err', 'orient_err', 'vel_err'):
        assert max(error[key] for error in errors) < 1e-2, key
    assert 0 < np.mean([error['attr_err'] for error in errors]) < 0.2
    assert set(metrics) == {f'nuscenes/{key}' for key in (
        'NDS', 'mAP', 'mATE', 'mASE', 'mAOE', 'mAVE', 'mAAE', *(f'{name}_AP' for name in CLASSES))}
    assert {type(value) for value in metrics.values()} == {float}
    assert '81 frames, split mini_val of v1.0-mini' in log() and 'traffic_cone' in log()


def test_perfect_detector_on_the_toy_world(toy):
    """All ten classes; coordinates of 5400 km, where float32 would be off by half a metre, cost nothing."""
    metrics = run(toy.samples, **toy.options)
    assert metrics['nuscenes/mAP'] == pytest.approx(1, abs=1e-6) and metrics['nuscenes/NDS'] > 0.95
    assert max(metrics[f'nuscenes/{key}'] for key in ('mATE', 'mASE', 'mAOE', 'mAVE')) < 1e-2


def test_ground_truth_of_our_info_files(toy, tmp_path):
    """Boxes and poses as the converter writes them, where the test above takes them from the tables."""
    create_infos(toy.nusc.dataroot, 'v1.0-mini', str(tmp_path))
    infos = load_infos(tmp_path / 'nuscenes_infos_val.pkl')
    categories = list(infos['metainfo']['categories'])
    samples = []
    for entry in infos['data_list']:
        seen = [item for item in entry['instances'] if item['num_lidar_pts'] + item['num_radar_pts'] > 0]
        rows = [[*item['bbox_3d'], *np.nan_to_num(item['velocity'])] for item in seen]
        samples.append(predict(entry['token'], np.array(entry['ego2global']) @ entry['lidar_points']['lidar2ego'], rows,
                               np.linspace(.9, .5, len(rows)), [item['bbox_label_3d'] for item in seen]))
    metrics = run(samples, classes=categories, data_root=toy.nusc.dataroot,
                  ann_file=str(tmp_path / 'nuscenes_infos_val.pkl'))
    assert metrics['nuscenes/mAP'] == pytest.approx(1, abs=1e-6) and metrics['nuscenes/NDS'] > 0.95
    assert max(metrics[f'nuscenes/{key}'] for key in ('mATE', 'mASE', 'mAOE', 'mAVE')) < 1e-2


def test_result_file_is_complete_camera_only_and_says_where(toy, tmp_path, log):
    samples = [*toy.samples[:3], empty(toy.tokens[3]), *toy.samples[4:]]
    run(samples, jsonfile_prefix=str(tmp_path / 'out'), **toy.options)
    content = json.loads((tmp_path / 'out' / 'results_nusc.json').read_text())
    assert list(content['results']) == toy.tokens
    assert content['results'][toy.tokens[3]] == []
    assert content['meta'] == dict(use_camera=True, use_lidar=False, use_radar=False, use_map=False, use_external=False)
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        'results_nusc.json', 'metrics_summary.json', 'metrics_details.json'}
    assert str(tmp_path / 'out' / 'results_nusc.json') in log()


def test_neither_the_order_of_predictions_nor_of_the_info_file_matters(toy, tmp_path):
    straight = run(toy.samples, jsonfile_prefix=str(tmp_path / 'a'), **toy.options)
    run(toy.samples[::-1], jsonfile_prefix=str(tmp_path / 'b'), **toy.options)
    assert (tmp_path / 'a/results_nusc.json').read_bytes() == (tmp_path / 'b/results_nusc.json').read_bytes()
    shuffled = write_infos(tmp_path / 'shuffled.pkl', [toy.tokens[i] for i in (2, 0, 6, 3, 5, 1, 4)])
    assert run(toy.samples, data_root=toy.nusc.dataroot, ann_file=shuffled) == pytest.approx(straight)


def test_missing_frames_are_counted_and_named(toy):
    with pytest.raises(ValueError, match='predictions for 2 frames, but the dataset has 7.*5 frames missing, e.g. '
                                         + ', '.join(sorted(toy.tokens[2:])[:3])):
        run(toy.samples[:2], size=7, **toy.options)


def test_a_frame_that_the_info_file_lacks_is_named(toy, tmp_path):
    with pytest.raises(ValueError, match='sample foreign is not among the 7 frames of .*e.g. '):
        run([*toy.samples, empty('foreign')], **toy.options)
    other = write_infos(tmp_path / 'other.pkl', ['x', *toy.tokens])
    with pytest.raises(ValueError, match='1 of 8 frames are not in the tables.*e.g. x'):
        run([empty('x'), *toy.samples], data_root=toy.nusc.dataroot, ann_file=other)


def test_wrong_tables_end_a_test_at_its_first_batch(toy):
    metric = NuScenesMetric(data_root='/nowhere', ann_file=toy.ann_file)
    with pytest.raises(FileNotFoundError, match='no nuScenes table /nowhere/v1.0-mini/scene.json'):
        metric.process({}, toy.samples[:1])


def test_a_dataset_cut_by_indices_is_scored_on_its_own_frames(toy, log):
    metrics = run(toy.samples[:3], size=3, **toy.options)
    # Where all classes are seen, ground truth of the other frames would halve the recall.
    assert metrics['nuscenes/car_AP'] == pytest.approx(1, abs=1e-6)
    assert 'holds 3 of the 7 frames' in log() and '3 frames, no official split' in log()


def test_an_info_file_with_few_frames_is_scored_on_them(toy, tmp_path, log):
    part = write_infos(tmp_path / 'part.pkl', toy.tokens[:3])
    few = run(toy.samples[:3], data_root=toy.nusc.dataroot, ann_file=part)
    assert few == run(toy.samples[:3], size=3, **toy.options)
    assert '3 frames, no official split' in log()


def test_no_boxes_at_all_score_zero(toy, log):
    metrics = run([empty(token) for token in toy.tokens], **toy.options)
    assert '0 boxes in all of the 7 frames' in log()
    expected = {key: 0. for key in ('NDS', 'mAP', *(f'{name}_AP' for name in CLASSES))}
    expected |= {key: 1. for key in ('mATE', 'mASE', 'mAOE', 'mAVE', 'mAAE')}
    assert metrics == {f'nuscenes/{key}': value for key, value in expected.items()}


def test_no_boxes_score_like_one_hopeless_box(toy):
    """What the devkit itself gives when it can run: one box far from everything."""
    hopeless = [empty(token) for token in toy.tokens[1:]]
    hopeless.append(predict(toy.tokens[0], np.eye(4), [CAR], [.1], [0]))
    assert run(hopeless, **toy.options) == run(
        [empty(token) for token in toy.tokens], **toy.options)


def test_more_than_500_boxes_are_cut_with_a_message(toy, tmp_path, log):
    many = predict(toy.tokens[0], np.eye(4), [CAR] * 600, np.linspace(0, 1, 600), [0] * 600)
    run([many, *toy.samples[1:]], jsonfile_prefix=str(tmp_path), **toy.options)
    boxes = json.loads((tmp_path / 'results_nusc.json').read_text())['results'][toy.tokens[0]]
    assert len(boxes) == 500 and min(box['detection_score'] for box in boxes) > 0.16
    assert '1 frames have more than 500 boxes: the 100 of lowest score left out' in log()


def test_one_wild_box_costs_itself_only(toy, tmp_path, log):
    """A size of 0 and one without bound among 300 boxes: left out, counted, and the frame is named."""
    samples = copy.deepcopy(toy.samples)
    for sample, size in ((samples[3], 0.), (samples[5], np.inf), (samples[5], 0.)):
        found = sample.pred_instances_3d
        wild = copy.deepcopy(found[:1])
        wild.bboxes_3d.tensor[:, 4] = size
        sample.pred_instances_3d = type(found).cat([wild, found])
    assert run(samples, jsonfile_prefix=str(tmp_path), **toy.options) == pytest.approx(run(toy.samples, **toy.options))
    assert '3 boxes of 2 frames have a size that under- or overflowed' in log()
    assert f'left out, the first in sample {toy.tokens[3]}' in log()


def test_what_was_done_is_written_first_and_taken_up(toy, tmp_path):
    """The frames of a test that ended count in the next one, of the same weights."""
    with pytest.raises(ValueError, match=rf'5 frames missing.*--go-on {tmp_path}/done.pkl'):
        run(toy.samples[:2], size=7, jsonfile_prefix=str(tmp_path), **toy.options)
    done = str(tmp_path / 'done.pkl')
    assert run(toy.samples[2:], go_on=done, **toy.options) == pytest.approx(run(toy.samples, **toy.options))
    with pytest.raises(ValueError, match='predictions for 4 frames, but the dataset has 5'):
        run(toy.samples[2:4], size=3, go_on=done, jsonfile_prefix=str(tmp_path), **toy.options)
    assert run(toy.samples[4:], go_on=done, **toy.options) == pytest.approx(run(toy.samples, **toy.options))
    with pytest.raises(ValueError, match='done.pkl is of other weights'):
        load_done(done, 'another')
    with pytest.raises(ValueError, match='is no file of a test that ended'):
        load_done(toy.ann_file, '')


def test_model_for_some_of_the_classes(toy, log):
    """The devkit's mean stays over ten classes; the mean over the model's own goes by another name."""
    classes = ('pedestrian', 'car')
    subset = []
    for sample in toy.samples:
        found = sample.pred_instances_3d
        keep = [(i, classes.index(CLASSES[k])) for i, k in enumerate(found.labels_3d.tolist()) if CLASSES[k] in classes]
        boxes = torch.cat([found.bboxes_3d.gravity_center, found.bboxes_3d.tensor[:, 3:]], dim=1)
        subset.append(predict(sample.token, sample.lidar2global, boxes[[i for i, _ in keep]].tolist(),
                              np.ones(len(keep)), [label for _, label in keep]))
    metrics = run(subset, classes=classes, **toy.options)
    assert metrics['nuscenes/mAP_subset'] == pytest.approx(1) and metrics['nuscenes/mAP'] == pytest.approx(0.2)
    assert [key for key in metrics if key.endswith('_AP')] == ['nuscenes/pedestrian_AP', 'nuscenes/car_AP']
    assert 'mAP_subset, 2 classes    1.000' in log() and 'mAP, mATE .. mAAE        0.200' in log()


def test_class_that_nuscenes_does_not_have(toy):
    with pytest.raises(ValueError, match=r"classes \['tram'\] are none of the ten"):
        run(toy.samples, classes=('car', 'tram'), **toy.options)


def test_label_beyond_the_classes(toy):
    with pytest.raises(ValueError, match=r'labels \[.*\] do not fit the 1 classes'):
        run(toy.samples, classes=('car',), **toy.options)


@pytest.mark.parametrize('key', ['token', 'lidar2global'])
def test_sample_without_its_metainfo(toy, key):
    sample = empty(toy.tokens[0])
    delattr(sample, key)
    with pytest.raises(KeyError, match=f'{key}.*PackCameraInputs'):
        run([sample], **toy.options)


def test_format_only(toy, tmp_path, log):
    with pytest.raises(ValueError, match='set jsonfile_prefix'):
        NuScenesMetric(format_only=True, **toy.options)
    options = dict(toy.options, data_root='/nowhere')  # no tables are opened
    assert run(toy.samples, format_only=True, jsonfile_prefix=str(tmp_path), **options) == {}
    assert [path.name for path in tmp_path.iterdir()] == ['results_nusc.json']
    assert len(json.loads((tmp_path / 'results_nusc.json').read_text())['results']) == 7


def test_the_test_split_only_gets_a_file(toy, tmp_path, log):
    ann_file = write_infos(tmp_path / 'test.pkl', toy.tokens, version='v1.0-test')
    with pytest.raises(ValueError, match='v1.0-test.*no public annotations.*jsonfile_prefix'):
        run(toy.samples, data_root='/nowhere', ann_file=ann_file)
    assert run(toy.samples, data_root='/nowhere', ann_file=ann_file, jsonfile_prefix=str(tmp_path / 'o')) == {}
    assert 'v1.0-test has no public annotations' in log()
    assert (tmp_path / 'o' / 'results_nusc.json').exists()


@pytest.mark.parametrize('content', [
    dict(infos=[], metadata={}),
    dict(metainfo=dict(info_version='1.1'), data_list=[dict(token='a')]),
    dict(metainfo=dict(info_version='1.1', version='v1.0-mini'), data_list=[dict(token='a'), dict(token='a')]),
], ids=['old', 'no version', 'twice'])
def test_unfit_info_file_is_refused(toy, tmp_path, content):
    path = tmp_path / 'unfit.pkl'
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match='unfit.pkl.*create_data.py'):
        run(toy.samples, data_root=toy.nusc.dataroot, ann_file=str(path))


def _rank(rank: int, ranks: list, size: int, options: dict, store: str) -> None:
    torch.distributed.init_process_group('gloo', f'file://{store}', rank=rank, world_size=len(ranks))
    metrics = run(ranks[rank], size=size, **options)
    assert metrics == {}  # every rank gets rank 0's answer
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize('ranks', [
    [[0, 2, 4, 6], [1, 3, 5, 0]],  # mmengine's sampler: every second frame, the first again at the end
    [[0, 1, 2, 3, 4], [5], [6, 0]],  # whole scenes per rank: unequal numbers
], ids=['two', 'three'])
def test_several_processes_write_the_file_of_one(toy, tmp_path, monkeypatch, ranks):
    monkeypatch.chdir(tmp_path)  # mmengine gathers through a folder in the working directory
    samples, options = toy.samples, dict(toy.options, format_only=True)
    run(samples, jsonfile_prefix=str(tmp_path / 'one'), **options)
    options.update(jsonfile_prefix=str(tmp_path / 'many'))
    # Without its padding no frame of any rank may be lost; the padding is a worse prediction, as after a lost memory.
    parts = [[samples[i] for i in part] for part in ranks]
    parts[-1][-1] = empty(toy.tokens[0])
    # Forked: a new interpreter would take ten seconds to import all.
    mp.start_processes(_rank, (parts, 7, options, str(tmp_path / 'store')), len(ranks), start_method='fork')
    assert (tmp_path / 'many/results_nusc.json').read_bytes() == (tmp_path / 'one/results_nusc.json').read_bytes()


class _Slow(NuScenesMetric):
    """Scores for longer than a collective may take."""

    def compute_metrics(self, results: list) -> dict:
        time.sleep(8)
        return dict(super().compute_metrics(results), mark=1.)


class _InACollective(_Slow):
    """Lets the other processes wait as mmengine does."""

    def evaluate(self, size: int) -> dict:
        self._dataset_size = size
        return BaseMetric.evaluate(self, size)


def _impatient(rank: int, kind: type, toy, store: str) -> None:
    torch.distributed.init_process_group('gloo', f'file://{store}', timedelta(seconds=3), rank=rank, world_size=2)
    metric = kind(format_only=True, jsonfile_prefix=f'{store}-out', **toy.options)
    metric.dataset_meta = dict(classes=CLASSES)
    metric.process({}, [sample.to_dict() for sample in toy.samples[rank::2]])
    assert metric.evaluate(7) == {'nuscenes/mark': 1}
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize('kind', [_Slow, _InACollective])
def test_no_process_waits_in_a_collective_while_the_first_one_scores(toy, tmp_path, monkeypatch, kind):
    """However long that takes; in mmengine's own way the collective's timeout ends the test without a table."""
    monkeypatch.chdir(tmp_path)
    start = partial(mp.start_processes, _impatient, (kind, toy, str(tmp_path / 'store')), 2, start_method='fork')
    if kind is _Slow:
        start()
    else:
        with pytest.raises(mp.ProcessRaisedException, match='imed out'):
            start()
