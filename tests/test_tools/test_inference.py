"""A detector in five lines: the results of tools/test.py, from paths, arrays and PIL images."""
import copy
import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import pytest
import torch
import yaml
from launching import TOOLS, load, main
from mmdet3d.apis import inference_multi_modality_detector, init_model
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from tiny_stream import write_configs

from georope.datasets import NuScenesCameraDataset
from georope.datasets.info_file import load_infos, save_infos
from georope.datasets.loose_frames import nuscenes_frames
from georope.evaluation.results import devkit_boxes, to_global
from georope.inference import Detector
from georope.registry import DATASETS, MODELS


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    """Config and seeded weights of a tiny StreamPETR, and what tools/test.py makes of them."""
    folder = tmp_path_factory.mktemp('inference')
    write_configs(folder)
    cfg = Config.fromfile(folder / 'epochs.json')
    init_default_scope('mmdet3d')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    for parameter in model.pts_bbox_head.parameters():  # many are 0: motion would not count
        parameter.data += 0.05 * torch.randn_like(parameter)
    torch.save(dict(state_dict=model.state_dict()), folder / 'weights.pth')
    main('test', folder / 'epochs.json', folder / 'weights.pth', '--work-dir', folder / 'work', '--cfg-options',
         f'test_evaluator.jsonfile_prefix={folder}')
    return folder


@pytest.fixture(scope='module')
def detector(folder) -> Detector:
    return Detector.from_checkpoint(folder / 'epochs.json', folder / 'weights.pth', 'cpu')


@pytest.fixture(scope='module')
def frames(folder) -> list[dict]:
    data: NuScenesCameraDataset = DATASETS.build(
        Config.fromfile(folder / 'epochs.json').test_dataloader.dataset | dict(pipeline=[]))
    return [data.get_data_info(i) for i in range(len(data))]


def calibration(frame: dict) -> dict:
    return dict(cam2img=frame['cam2img'], lidar2cam=frame['lidar2cam'])


def pose(frame: dict) -> dict:
    return dict(lidar2global=frame['lidar2global'], timestamp=1.7e9 + frame['timestamp'], scene=frame['scene_token'])


def test_a_stream_is_what_test_py_finds_to_the_byte(folder, detector, frames):
    """Two streams at a time, each with its own memory, and frames in between that leave no trace."""
    expected = json.loads((folder / 'results_nusc.json').read_text())['results']
    stream, other = detector.stream(), detector.stream()
    for frame in frames:
        other(frame['img_path'][::-1], frame['lidar2img'][::-1], **pose(frames[0]))
        stream(frame['img_path'], **calibration(frame), **pose(frame), remember=False)
        sample = stream.predict(frame['img_path'], **calibration(frame), **pose(frame), cameras=frame['cam_names'])
        found = sample.pred_instances_3d
        boxes = to_global(frame['token'], found.bboxes_3d, found.scores_3d, found.labels_3d, frame['lidar2global'])
        assert json.loads(json.dumps(devkit_boxes(boxes, detector.classes))) == expected[frame['token']]
        assert len(found) > 50
        if not frame['prev_exists']:  # a frame by itself is a scene of one frame
            alone, first = detector(frame['img_path'], **calibration(frame)), detector.detections(sample)
            assert all(map(np.array_equal, alone, first))
    with pytest.raises(ValueError, match='sample early is 1.0 s earlier'):
        stream.predict(frame['img_path'], **calibration(frame), **pose(frame) | dict(timestamp=1.7e9 + frame[
            'timestamp'] - 1), token='early')
    changed = stream(frame['img_path'], **calibration(frame), **pose(frame))
    stream.reset()
    again = stream(frame['img_path'], **calibration(frame), **pose(frame))
    assert np.array_equal(again.boxes, detector(frame['img_path'], **calibration(frame)).boxes)
    assert not np.array_equal(again.boxes, changed.boxes)


def test_paths_arrays_and_pil_images_and_a_projection(detector, frames):
    frame = frames[0]
    boxes, scores, names = detector([Path(path) for path in frame['img_path']], **calibration(frame))
    assert boxes.shape == (len(scores), 9) and len(names) == len(scores) and set(names) <= set(detector.classes)
    assert (np.diff(scores) <= 0).all() and boxes.dtype == scores.dtype == np.float32
    arrays = [cv2.imread(path) for path in frame['img_path']]
    assert np.array_equal(detector(arrays, **calibration(frame)).boxes, boxes)
    pictures = [Image.fromarray(array[..., ::-1]) for array in arrays]
    assert np.array_equal(detector(pictures, **calibration(frame)).boxes, boxes)
    # Factors of the projection are found again; mirrored pictures are seen where they are.
    other = detector(pictures, frame['lidar2img'].astype(np.float32))
    np.testing.assert_allclose(other.scores, scores, atol=1e-4)
    np.testing.assert_allclose(other.boxes[:20], boxes[:20], atol=1e-2)
    mirror = np.diag([-1.0, 1, 1, 1])
    mirror[0, 2] = arrays[0].shape[1]
    mirrored = detector.predict(arrays, mirror @ frame['lidar2img'])
    seen = detector.predict(arrays, frame['lidar2img'])
    assert (np.array(mirrored.cam2img)[:, 0, 0] < 0).all()
    np.testing.assert_allclose(np.abs(np.array(mirrored.cam2img)[:, [0, 1], [0, 1]]),
                               np.array(seen.cam2img)[:, [0, 1], [0, 1]], rtol=1e-9)
    # Any number of cameras.
    assert len(detector(arrays[:1], frame['lidar2img'][:1]).boxes)


@pytest.mark.parametrize('change, told', [
    (dict(cam2img=None), r'frame frame: give lidar2img, or cam2img and lidar2cam; here are \[.lidar2cam.\]'),
    (dict(lidar2img=np.eye(4)[None]), 'give lidar2img, or cam2img and lidar2cam; here are'),
    (dict(lidar2cam=np.eye(4)[None]), '2 images and 1 matrices lidar2cam'),
    (dict(lidar2cam=2 * np.eye(4)[None].repeat(2, 0)), 'frame frame: camera 0: lidar2cam has a rotation'),
    (dict(lidar2cam=None, cam2img=None, lidar2img=5 * np.eye(4)[None].repeat(2, 0)), 'third row has length 5'),
    (dict(images=[np.zeros((4, 4)), np.zeros((4, 4))]), r'camera 0: the image is an array \(4, 4\) float64'),
    (dict(images=['absent.jpg', 'absent.jpg']), 'sample frame, camera camera 0: .*absent.jpg'),
])
def test_errors_say_what_to_do(detector, frames, change, told):
    images = change.pop('images', frames[0]['img_path'])
    with pytest.raises((ValueError, OSError), match=told):
        detector(images, **calibration(frames[0]) | change)


def test_weights_of_another_model_are_refused(folder, tmp_path):
    weights = torch.load(folder / 'weights.pth', weights_only=True)
    weights['state_dict'].pop('pts_bbox_head.reference_points.weight')
    torch.save(weights, tmp_path / 'less.pth')
    with pytest.raises(RuntimeError, match='missing in the checkpoint.*reference_points'):
        Detector.from_checkpoint(folder / 'epochs.json', tmp_path / 'less.pth', 'cpu')


def infer(folder: Path, *arguments) -> None:
    argv = ['infer', folder / 'epochs.json', folder / 'weights.pth', *arguments, '--device', 'cpu']
    with mock.patch.object(sys, 'argv', [str(part) for part in argv]):
        load('infer').main()


def test_infer_on_a_calibration_file(folder, frames, tmp_path):
    """One's own images: the results of tools/test.py again, with a picture of each frame."""
    rig = {name: dict(cam2img=frames[0]['cam2img'][i, :3, :3].tolist(), lidar2cam=frames[0]['lidar2cam'][i].tolist())
           for i, name in enumerate(frames[0]['cam_names'])}
    content = dict(cameras=rig, frames=[dict(
        token='first', images=dict(zip(frames[0]['cam_names'], frames[0]['img_path'])), timestamp=3,
        lidar2global=frames[0]['lidar2global'].tolist())])
    (tmp_path / 'rig.yaml').write_text(yaml.safe_dump(content))
    infer(folder, tmp_path / 'rig.yaml', '--out', tmp_path / 'out', '--score-thr', '0')
    expected = json.loads((folder / 'results_nusc.json').read_text())['results'][frames[0]['token']]
    found = json.loads((tmp_path / 'out/detections.json').read_text())['results']['first']
    assert found == [box | dict(sample_token='first') for box in expected]
    picture = cv2.imread(str(tmp_path / 'out/first.png'))
    assert picture.shape[1] > 1200 and picture.std() > 10

    for change, told in ((lambda x: x['cameras'][frames[0]['cam_names'][0]].pop('cam2img'), 'give cam2img and lidar2c'),
                         (lambda x: x['frames'][0]['images'].popitem(), 'frame first: images: it needs images of the'),
                         (lambda x: x['frames'][0].update(time=4), r"frame first: unknown keys \['time'\]"),
                         (lambda x: x.pop('frames'), '"frames" .the images. are needed')):
        other = copy.deepcopy(content)
        change(other)
        (tmp_path / 'rig.json').write_text(json.dumps(other))
        with pytest.raises(ValueError, match=told):
            infer(folder, tmp_path / 'rig.json', '--out', tmp_path / 'out')
    content['frames'][0].pop('timestamp')
    (tmp_path / 'rig.json').write_text(json.dumps(content))
    with pytest.raises(SystemExit, match='frame first: a model with a memory needs timestamp'):
        infer(folder, tmp_path / 'rig.json', '--out', tmp_path / 'out')


def test_infer_between_the_key_frames(folder, frames, tmp_path):
    """Key frames keep their results; a still object is where the key frames around it see it."""
    root = folder / 'toy'
    tables = {name: json.loads((root / f'v1.0-mini/{name}.json').read_text()) for name in ('sample_data', 'scene')}
    name = min(scene['name'] for scene in tables['scene'])
    keys = {record['sample_token']: record for record in tables['sample_data']
            if record['is_key_frame'] and 'CAM_FRONT/' in record['filename']}
    for record in tables['sample_data']:  # the toy world has no such images: those of a key frame stand in
        if not record['is_key_frame'] and record['filename'].endswith('.jpg'):
            (root / record['filename']).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / keys[record['sample_token']]['filename'], root / record['filename'])
    infer(folder, root, '--version', 'v1.0-mini', '--scenes', name, '--sweeps', '--out', tmp_path, '--no-pictures')
    found = json.loads((tmp_path / 'detections.json').read_text())['results']
    expected = json.loads((folder / 'results_nusc.json').read_text())['results']
    own = [token for token in expected if token in found]
    assert len(own) == 4 and len(found) == 4 + 3 and not list(tmp_path.glob('*.png'))
    assert all(found[token] == expected[token] for token in own)

    drive = list(nuscenes_frames(root, 'v1.0-mini', [name], between=True))
    assert [frame.key_frame for frame in drive] == [True, False] * 3 + [True]
    still = drive[0].lidar2global @ [5, 12, 0, 1]
    for before, between, after in zip(drive[::2], drive[1::2], drive[2::2]):
        assert before.timestamp < between.timestamp < after.timestamp
        share = (between.timestamp - before.timestamp) / (after.timestamp - before.timestamp)
        position = ((1 - share) * before.lidar2global + share * after.lidar2global)[:3, 3]
        assert np.linalg.norm(between.lidar2global[:3, 3] - position) < 0.05
        cam = [frame.lidar2cam[0] @ np.linalg.inv(frame.lidar2global) @ still for frame in (before, between, after)]
        assert np.linalg.norm(cam[1] - (cam[0] + cam[2]) / 2) < 0.3
    with pytest.raises(ValueError, match='has no scenes scene-9999; it has'):
        list(nuscenes_frames(root, 'v1.0-mini', ['scene-9999']))


def test_mmdet3ds_own_functions(folder, frames, tmp_path):
    """What docs/deployment.md says of them: init_model with any config, inference_multi_modality_detector with PETR."""
    stream = init_model(str(folder / 'epochs.json'), str(folder / 'weights.pth'), 'cpu')
    assert stream.dataset_meta['classes'][0] == 'car'
    infos = load_infos(folder / 'toy/nuscenes_infos_train.pkl')
    entry = infos['data_list'][0]
    entry['images'] = {name: entry['images'][name] for name in frames[0]['cam_names']}
    for name, image in entry['images'].items():  # the function wants all images of a frame in one folder
        shutil.copy(folder / 'toy/samples' / name / image['img_path'], tmp_path)
    save_infos(infos, tmp_path / 'infos.pkl')
    arguments = ('no lidar.bin', str(tmp_path), str(tmp_path / 'infos.pkl'), 'all')
    with pytest.raises(ValueError, match=r"no \['ego_pose'"):
        stream.cfg.test_dataloader.dataset.box_type_3d = 'LiDAR'
        inference_multi_modality_detector(stream, *arguments)

    petr = Config.fromfile(TOOLS.parent / 'configs/toy/petr-urope_toy.py')
    petr.test_dataloader.dataset = Config.fromfile(folder / 'epochs.json').test_dataloader.dataset
    petr.model.pts_bbox_head.update(num_query=12)
    torch.manual_seed(0)
    weights = MODELS.build(petr.model).state_dict()
    torch.save(dict(state_dict=weights, meta=dict(dataset_meta={})), tmp_path / 'petr.pth')
    model = init_model(petr, str(tmp_path / 'petr.pth'), 'cpu')
    model.cfg.test_dataloader.dataset.box_type_3d = 'LiDAR'
    found = inference_multi_modality_detector(model, *arguments)[0].pred_instances_3d
    ours = Detector.from_checkpoint(petr, tmp_path / 'petr.pth', 'cpu').predict(
        frames[0]['img_path'], **calibration(frames[0])).pred_instances_3d
    assert len(found) and torch.equal(found.bboxes_3d.tensor, ours.bboxes_3d.tensor)
    with pytest.raises(ValueError, match='remembers nothing'):
        Detector.from_checkpoint(petr, tmp_path / 'petr.pth', 'cpu').stream()
