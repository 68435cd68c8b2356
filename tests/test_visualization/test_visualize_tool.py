"""tools/visualize.py on info files of the converter."""
import json
import pickle
import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.toy import make_toy_nuscenes
from georope.visualization import draw_info_frame
from georope.visualization.info import ground_truth, lidar2global, load_cameras

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'visualize.py'
CONFIG = TOOL.parents[1] / 'configs/toy/petr-urope_toy.py'


@pytest.fixture(scope='module')
def toy(tmp_path_factory) -> Path:
    """Four frames of four cameras, the second without objects."""
    root = make_toy_nuscenes(tmp_path_factory.mktemp('toy') / 'set', scenes=(0, 1), samples_per_scene=4, num_cameras=4,
                             image_size=(90, 160), edge_cases=('empty_frame', 'zero_points'), progress=False)
    create_infos(str(root), 'v1.0-mini')
    return root


def results_of(infos: dict) -> dict:
    box = dict(translation=[1., 2, 3], size=[1., 1, 1], rotation=[1., 0, 0, 0], velocity=[0., 0], detection_name='car',
               detection_score=.9)
    return {entry['token']: [box] for entry in infos['data_list']}


@pytest.fixture
def visualize(toy, tmp_path, monkeypatch):
    """Runs the tool on the toy set's info file, results and other arguments; pictures go to tmp_path / 'vis'."""
    def run(results: dict, *arguments: str, ann_file: Path = toy / 'nuscenes_infos_val.pkl') -> None:
        (tmp_path / 'results.json').write_text(json.dumps(dict(results=results)))
        monkeypatch.setattr(sys, 'argv', [
            str(TOOL), '--ann-file', str(ann_file), '--data-root', str(toy), '--out', str(tmp_path / 'vis'),
            '--results', str(tmp_path / 'results.json'), *arguments])
        runpy.run_path(str(TOOL), run_name='__main__')
    return run


def test_tool_writes_a_picture_per_frame(toy, visualize, tmp_path, capsys):
    infos, out = load_infos(toy / 'nuscenes_infos_val.pkl'), tmp_path / 'vis'
    visualize(results_of(infos), '--max-frames', '2')
    tokens = [infos['data_list'][i]['token'] for i in (0, 3)]  # spread over the file
    assert sorted(path.stem for path in out.iterdir()) == sorted(tokens)
    assert str(out / f'{tokens[0]}.png') in capsys.readouterr().out
    expected = draw_info_frame(infos['data_list'][0], infos['metainfo'], str(toy), results_of(infos))
    np.testing.assert_array_equal(cv2.imread(str(out / f'{tokens[0]}.png')), expected)


def tracks_of(infos: dict) -> dict:
    """A track at a position in the LiDAR frame, whatever the car does."""
    results = {}
    for entry in infos['data_list']:
        x, y, z, _ = lidar2global(entry) @ [3, 15, 0, 1]
        box = dict(results_of(infos)[entry['token']][0], translation=[x, y, z], tracking_id='s/1', tracking_name='car',
                   tracking_score=.9)
        results[entry['token']] = [box]
    return results


def test_tool_draws_tracks_with_tails_and_films_of_a_scene(toy, visualize, tmp_path):
    infos = load_infos(toy / 'nuscenes_infos_val.pkl')
    entries, tracks = infos['data_list'], tracks_of(infos)
    scene = entries[0]['scene_name']
    visualize(tracks, '--scenes', scene, '--film', 'mp4', '--fps', '2')
    assert len(list((tmp_path / 'vis').glob('*.png'))) == len(entries) == 4
    film = cv2.VideoCapture(str(tmp_path / 'vis' / f'{scene}.mp4'))
    assert film.get(cv2.CAP_PROP_FRAME_COUNT) == 4 and film.get(cv2.CAP_PROP_FPS) == 2
    last = cv2.imread(str(tmp_path / 'vis' / f'{entries[3]["token"]}.png'))
    expected = draw_info_frame(entries[3], infos['metainfo'], str(toy), tracks, past=entries[:3])
    np.testing.assert_array_equal(last, expected)
    assert (expected != draw_info_frame(entries[3], infos['metainfo'], str(toy), tracks)).any()  # the tail


def test_tool_refuses_unknown_scenes_and_info_files_without_scenes(toy, visualize, tmp_path):
    infos = load_infos(toy / 'nuscenes_infos_val.pkl')
    with pytest.raises(SystemExit, match='has no scene-9999, but scene-'):
        visualize(results_of(infos), '--scenes', 'scene-9999')
    plain = [{key: value for key, value in entry.items() if not key.startswith('scene_')}
             for entry in infos['data_list']]
    ann_file = save_infos(dict(infos, data_list=plain), tmp_path / 'plain.pkl')
    with pytest.raises(SystemExit, match=r'does not name scenes: add them with tools/create_data.py --update'):
        visualize(results_of(infos), '--film', 'gif', ann_file=ann_file)
    with pytest.raises(SystemExit, match='tracks need scenes'):
        visualize(tracks_of(infos), ann_file=ann_file)
    visualize(results_of(infos), '--max-frames', '1', ann_file=ann_file)
    assert len(list((tmp_path / 'vis').iterdir())) == 1


def test_a_file_that_is_no_result_file_is_named(tmp_path, visualize):
    (tmp_path / 'summary.json').write_text('{"mean_ap": 1}')
    with pytest.raises(SystemExit, match='summary.json has no "results"'):
        visualize({}, '--results', str(tmp_path / 'summary.json'))


def test_truth_is_what_the_devkit_scores(toy):
    infos = load_infos(toy / 'nuscenes_infos_val.pkl')
    categories = infos['metainfo']['categories']
    counts = [len(ground_truth(entry, categories)) for entry in infos['data_list']]
    assert counts[1] == 0 and min(counts[0], *counts[2:]) > 0
    without_points = [item for item in infos['data_list'][0]['instances']
                      if item['num_lidar_pts'] + item['num_radar_pts'] == 0]
    assert without_points and counts[0] == len(infos['data_list'][0]['instances']) - len(without_points)


def test_frame_without_annotations_or_boxes(toy):
    """The test split has no annotations; an empty list of detections draws nothing."""
    infos = load_infos(toy / 'nuscenes_infos_val.pkl')
    entry = {key: value for key, value in infos['data_list'][0].items() if key != 'instances'}
    bare = draw_info_frame(entry, infos['metainfo'], str(toy), {entry['token']: []})
    images, _, names = load_cameras(entry, str(toy))
    assert len(images) == len(names) == 4 and bare.ndim == 3


def compare_with_2d_boxes(infos: dict, data_root: Path) -> int:
    """Corners must project to the 2D boxes of the info file; returns how many boxes were compared.

    Not to the pixel, and not near and large ones: boxes of the LiDAR frame are level in it, the annotations level on
    the ground, 1.4 degrees apart in nuScenes.
    """
    compared = 0
    for entry in infos['data_list']:
        images, matrices, names = load_cameras(entry, str(data_root))
        truth = ground_truth(entry, infos['metainfo']['categories'])
        for image, matrix, name in zip(images, matrices, names):
            width = image.shape[1]
            ends = truth.corners @ matrix[:3, :3].T + matrix[:3, 3]
            depth, corners = ends.mean(1)[:, 2], ends[..., :2] / ends[..., 2:]
            middle = ends.mean(1)[:, :2] / depth[:, None]
            small = [item for item in entry['cam_instances'][name] if item['bbox'][2] - item['bbox'][0] < width / 16
                     and 1 < item['bbox'][0] and item['bbox'][2] < width - 1]
            for item in small:
                found = (np.abs(middle - item['center_2d']).max(1) < 2) & (np.abs(depth - item['depth']) < .2)
                for match in corners[found]:
                    np.testing.assert_allclose([*match.min(0), *match.max(0)], item['bbox'], atol=width / 200)
                    compared += 1
    return compared


def test_projection_agrees_with_the_2d_boxes_of_our_info_files(toy):
    assert compare_with_2d_boxes(load_infos(toy / 'nuscenes_infos_val.pkl'), toy) > 5


def test_projection_agrees_with_the_2d_boxes_of_a_real_frame(shared):
    folder = shared / 'data' / 'nuscenes_frame'
    assert compare_with_2d_boxes(pickle.loads(next(folder.glob('*.pkl')).read_bytes()), folder) > 40


def test_what_is_missing_is_named(toy, tmp_path):
    infos = load_infos(toy / 'nuscenes_infos_val.pkl')
    entry = infos['data_list'][0]
    with pytest.raises(FileNotFoundError, match=f'{entry["token"]}, CAM_FRONT: no readable image at {tmp_path}'):
        draw_info_frame(entry, infos['metainfo'], str(tmp_path))
    with pytest.raises(KeyError, match=f'no sample {entry["token"]}'):
        draw_info_frame(entry, infos['metainfo'], str(toy), {'other': []})


def test_browse_dataset_draws_augmented_frames(toy, tmp_path, monkeypatch):
    """As the network gets them: 96 x 256 here, one picture per frame; another seed augments otherwise."""
    pictures = []
    for seed in ('0', '0', '1'):
        out = tmp_path / str(len(pictures))
        monkeypatch.setattr(sys, 'argv', [
            'browse_dataset.py', str(CONFIG), '--output-dir', str(out), '--seed', seed, '--max-frames', '2',
            '--cfg-options', f'train_dataloader.dataset.data_root={toy}',
            'train_dataloader.dataset.ann_file=nuscenes_infos_val.pkl'])
        runpy.run_path(str(TOOL.with_name('browse_dataset.py')), run_name='__main__')
        pictures.append({path.name: cv2.imread(str(path)) for path in sorted(out.iterdir())})
    first, again, other = pictures
    tokens = [entry['token'] for entry in load_infos(str(toy / 'nuscenes_infos_val.pkl'))['data_list']]
    assert len(first) == 2 and {Path(name).stem for name in first} <= set(tokens)
    assert all((first[name] == again[name]).all() and first[name].std() > 5 for name in first)
    assert any((first[name] != other[name]).any() for name in first)
