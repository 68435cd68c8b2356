"""Frames as a stream shows them: draws, starts, broken images, sliding windows. Real files through real loaders."""
import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import ConcatDataset
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from small_nuscenes import CLASSES, TEST, TRAIN, write_nuscenes

from georope.datasets import NuScenesWindowDataset, StreamIndex
from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos
from georope.engine import StreamHook
from georope.registry import DATASETS

SCENES = [f'scene-0061-{i}' for i in range(3)], [f'scene-0553-{i}' for i in range(2)]


def settings(root, ann_file='nuscenes_infos_train.pkl', **kwargs):
    file = ann_file if isinstance(ann_file, list) else str(ann_file)
    return dict(type='georope.NuScenesCameraDataset', data_root=str(root), ann_file=file, pipeline=TRAIN,
                metainfo=dict(classes=CLASSES), **kwargs)


def loader(dataset, workers=0, kind='StreamBatchSampler', batch_size=2, sampler='DefaultSampler', **kwargs):
    return Runner.build_dataloader(
        dict(dataset=dataset, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0,
             sampler=dict(type=sampler, shuffle=False),
             batch_sampler=dict(type=f'georope.{kind}', **kwargs)), seed=0)


def shown(batches):
    """Per slot, (token, prev_exists)."""
    return [[(sample.token, sample.prev_exists) for sample in slot]
            for slot in zip(*(batch['data_samples'] for batch in batches))]


def two_epochs(dataloader):
    batches = []
    for epoch in range(2):
        dataloader.batch_sampler.sampler.set_epoch(epoch)
        batches += dataloader
    return batches


@pytest.fixture(scope='module')
def dataset(small_root):
    init_default_scope('mmdet3d')  # the fixture that does it serves single tests
    return DATASETS.build(settings(small_root))


@pytest.fixture(scope='module')
def epochs(dataset):
    return two_epochs(loader(dataset))


@pytest.mark.parametrize('parts, kind, told', [
    (14, 'NuScenesCameraDataset', True), ('all', 'NuScenesCameraDataset', True), (1, 'NuScenesCameraDataset', False),
    ('all', 'NuScenesWindowDataset', False)])
def test_a_stream_of_single_frames_is_told(small_root, parts, kind, told):
    """A memory would be empty in every frame of the training; windows bring their own frames before."""
    options = dict(queue_length=2) if 'Window' in kind else {}
    dataset = DATASETS.build(dict(settings(small_root, **options), type=f'georope.{kind}'))
    stream = loader(dataset, batch_size=1, seq_split_num=parts)
    said = []
    logger = SimpleNamespace(info=str, warning=said.append)
    StreamHook().before_train(SimpleNamespace(
        train_loop=SimpleNamespace(dataloader=stream), train_dataloader=stream, seed=0, logger=logger))
    assert (said == []) != told
    assert not told or 'each of the 5 sequences is one frame' in said[0] and 'seq_split_num' in said[0]


def test_several_info_files_are_one_set(tmp_path):
    """Train and val together, for a model that goes to the test server: alone and as a stream."""
    root = write_nuscenes(tmp_path / 'set')
    train, val = create_infos(root, 'v1.0-mini')
    both = DATASETS.build(settings(root, [str(val), train.name]))
    apart = [DATASETS.build(settings(root, file)) for file in (train, val)]
    assert [both.get_data_info(i)['token'] for i in range(len(both))] == [
        dataset.get_data_info(i)['token'] for dataset in apart for i in range(len(dataset))]
    assert both.num_ins_per_cat == [sum(counts) for counts in zip(*(dataset.num_ins_per_cat for dataset in apart))]
    stream = loader(both, batch_size=2)
    assert sorted(map(len, stream.batch_sampler.sequences)) == [2, 3]
    batches = list(stream)
    assert {token.rpartition('-')[0] for slot in shown(batches) for token, _ in slot} == {'scene-0061', 'scene-0103'}
    infos = load_infos(val)
    infos['metainfo']['categories']['car'], infos['metainfo']['categories']['bus'] = 3, 0
    other = save_infos(infos, tmp_path / 'other.pkl')
    with pytest.raises(ValueError, match=r'other.pkl and .*train.pkl have other labels'):
        DATASETS.build(settings(root, [train.name, str(other)]))
    with pytest.raises(ValueError, match=r'val.pkl: 2 samples are in .*val.pkl too: scene-0103-0'):
        DATASETS.build(settings(root, [val.name, val.name]))
    infos = load_infos(val)
    infos['data_list'][0]['timestamp'] = float('nan')
    broken = save_infos(infos, tmp_path / 'broken.pkl')
    with pytest.raises(ValueError, match=rf'^{broken}: sample scene-0103-0: timestamp is nan'):
        DATASETS.build(settings(root, [train.name, str(broken)]))
    with pytest.raises(ValueError, match='ann_file is an empty list'):
        DATASETS.build(settings(root, []))


def test_slots_go_through_scenes(epochs):
    for slot in shown(epochs):
        assert len(slot) == 6
        for number, ((before, _), (token, prev_exists)) in enumerate(zip(slot, slot[1:]), 1):
            scene = next(scene for scene in SCENES if token in scene)
            position = scene.index(token)
            assert prev_exists == (position > 0 and number != 3)  # 3 iterations are an epoch
            assert position == 0 or before == scene[position - 1]
    assert not any(slot[0][1] for slot in shown(epochs))


def test_workers_and_prefetching_change_nothing(dataset, epochs):
    again = two_epochs(loader(dataset, workers=2))
    assert shown(again) == shown(epochs)
    for one, two in zip(epochs, again):
        for a, b in zip(one['inputs']['img'], two['inputs']['img']):
            assert torch.equal(a, b)
        for a, b in zip(one['data_samples'], two['data_samples']):
            np.testing.assert_array_equal(a.lidar2img, b.lidar2img)
            np.testing.assert_array_equal(a.ego_pose, b.ego_pose)


@pytest.mark.parametrize('sampler', ['DefaultSampler', 'InfiniteSampler'])
def test_a_loader_that_prefetched_jumps(dataset, sampler):
    """As mmengine's loop by iteration makes it do on resume: its workers were started, and asked, before."""
    dataloader = loader(dataset, workers=1, sampler=sampler)
    straight = dataloader.batch_sampler
    straight.endless = True
    expected = list(itertools.islice(straight, 9))[4:]
    iter(dataloader)
    straight.start = 4
    batches = list(itertools.islice(iter(dataloader), 5))
    tokens = [[dataset.get_data_info(index)['token'] for index in batch] for batch in expected]
    assert [[sample.token for sample in batch['data_samples']] for batch in batches] == tokens
    assert not any(sample.prev_exists for sample in batches[0]['data_samples'])


@pytest.mark.parametrize('kind', ['StreamBatchSampler', 'SceneBatchSampler'])
def test_wrapped_datasets_are_refused(dataset, kind):
    """They would lose what a slot adds to an index."""
    with pytest.raises(TypeError, match='ConcatDataset has no scenes.*NuScenesCameraDataset'):
        loader(ConcatDataset([dataset, dataset]), kind=kind)


def test_order_of_the_info_file_does_not_matter(infos, small_root, tmp_path, epochs):
    infos['data_list'] = [infos['data_list'][i] for i in (3, 0, 4, 2, 1)]
    mixed = DATASETS.build(settings(small_root, save_infos(infos, tmp_path / 'mixed.pkl')))
    assert shown(two_epochs(loader(mixed))) == shown(epochs)


def test_frames_have_their_own_draws_which_iteration_and_slot_fix(dataset):
    """As in the recipe, neither the image's nor the BEV augmentation is shared within a sequence."""
    def drawn(iteration, slot, index=0):
        sample = dataset[StreamIndex(index, False, (0, iteration, slot))]['data_samples']
        return sample.cam2img, sample.ego_pose

    (camera, pose), (camera_again, pose_again) = drawn(4, 1), drawn(4, 1)
    assert (camera == camera_again).all() and (pose == pose_again).all()
    for other in (drawn(5, 1), drawn(4, 0)):
        assert np.abs(other[0] - camera).max() > 1e-3 and np.abs(other[1] - pose).max() > 1e-3


def test_draws_leave_the_global_generator_alone(dataset):
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    dataset[StreamIndex(0, False, (0, 4, 1))]
    assert np.random.rand() == expected


def test_what_the_memory_needs(dataset):
    """A point keeps its global position through ``ego_pose``, however the frame is rotated; times are float64."""
    plain = dataset.get_data_info(1)
    for seed in range(3):
        sample = dataset[StreamIndex(1, False, (seed, 0, 0))]['data_samples']
        assert sample.ego_pose.dtype == np.float64 and sample.ego_pose.shape == (4, 4)
        moved = np.linalg.inv(sample.ego_pose) @ plain['lidar2global']  # recorded frame -> augmented frame
        np.testing.assert_allclose(sample.lidar2img @ moved, sample.cam2img @ plain['lidar2cam'], atol=1e-6)
        assert np.cbrt(np.linalg.det(moved[:3, :3])) == pytest.approx(
            1 / np.cbrt(np.linalg.det(sample.lidar2global[:3, :3])))
        assert isinstance(sample.timestamp, float) and sample.timestamp == pytest.approx(.5, abs=1e-6)
        assert (sample.scene_token, sample.frame_idx, sample.prev_exists) == ('scene-0061', 1, True)


def test_objects_of_a_real_scene_meet_again_in_the_next_frame(shared, tmp_path):
    """Four frames of a slot, each turned and scaled on its own: poses, times and velocities belong together."""
    root = shared / 'data/nuscenes_scene0103'
    create_infos(root, 'v1.0-mini', tmp_path)
    pipeline = [step for step in TRAIN if step['type'] != 'georope.LoadCameraImages']
    dataset = DATASETS.build(dict(settings(root, tmp_path / 'nuscenes_infos_val.pkl'), pipeline=pipeline))
    (samples, ) = zip(*(batch['data_samples'] for batch in loader(dataset, batch_size=1)))
    assert [sample.prev_exists for sample in samples] == [False, True, True, True]
    assert np.linalg.norm(samples[3].ego_pose[:3, 3] - samples[0].ego_pose[:3, 3]) > 3  # the ego drives

    def to_global(sample, points, fill):
        return np.column_stack([points, fill]) @ sample.ego_pose[:3].T

    for before, after in zip(samples, samples[1:]):
        (old, speed), (new, _) = (
            (boxes.gravity_center.double().numpy(), boxes.tensor[:, 7:].double().numpy())
            for boxes in (before.gt_instances_3d.bboxes_3d, after.gt_instances_3d.bboxes_3d))
        zeros = np.zeros((len(old), 2))
        step = np.nan_to_num(to_global(before, speed, zeros)) * (after.timestamp - before.timestamp)
        expected, found = to_global(before, old, zeros[:, 0] + 1) + step, to_global(after, new, np.ones(len(new)))
        nearest = np.linalg.norm(expected[:, None] - found[None], axis=-1).min(1)
        # Walkers change their pace; without the step it is half a metre, with a wrong pose metres.
        assert len(nearest) > 15 and np.median(nearest) < .25


# Broken frames


def test_a_broken_image_ends_the_training_and_says_how_to_go_on(infos, small_root, tmp_path):
    """Nothing replaces it."""
    broken = tmp_path / 'broken.jpg'
    broken.write_bytes(b'\xff\xd8 no image')
    infos['data_list'][1]['images']['CAM_BACK']['img_path'] = str(broken)
    config = settings(small_root, save_infos(infos, tmp_path / 'infos.pkl'))
    with pytest.raises(OSError, match='sample scene-0061-1, camera CAM_BACK: .*broken.jpg.*skip_tokens of the dataset'):
        two_epochs(loader(DATASETS.build(config)))
    config.update(skip_tokens=['scene-0061-1'])
    batches = two_epochs(loader(DATASETS.build(config), batch_size=1))
    (slot, ) = shown(batches)
    assert {token for token, _ in slot} == {*SCENES[0], *SCENES[1]} - {'scene-0061-1'}
    for (before, _), (token, prev_exists) in zip(slot, slot[1:]):
        if token == 'scene-0061-2':  # goes on in its scene, without memory
            assert before == 'scene-0061-0' and not prev_exists
    samples = {sample.token: sample for batch in batches for sample in batch['data_samples']}
    sample = samples['scene-0061-2']
    assert (sample.timestamp, sample.frame_idx) == (pytest.approx(1), 2)  # not moved by what was left out


def test_a_missing_image_in_a_test(small_root, tmp_path):
    root = shutil.copytree(small_root, tmp_path / 'copy')
    (root / 'samples/CAM_FRONT/scene-0553-0__CAM_FRONT.jpg').unlink()
    config = dict(settings(root, test_mode=True), pipeline=TEST)
    with pytest.raises(OSError, match='sample scene-0553-0, camera CAM_FRONT: .*skip_tokens'):
        list(loader(DATASETS.build(config), kind='SceneBatchSampler'))
    config.update(skip_tokens=['scene-0553-0'])
    assert sum(shown(loader(DATASETS.build(config), kind='SceneBatchSampler', batch_size=1)), []) == [
        ('scene-0061-0', False), ('scene-0061-1', True), ('scene-0061-2', True), ('scene-0553-1', False)]


def test_broken_frames_in_workers(infos, small_root, tmp_path):
    """The error comes through persistent workers that prefetch; what is left out resets its slot alone."""
    broken = tmp_path / 'broken.jpg'
    broken.write_bytes(b'\xff\xd8 no image')
    infos['data_list'][1]['images']['CAM_BACK']['img_path'] = str(broken)
    config = settings(small_root, save_infos(infos, tmp_path / 'infos.pkl'))
    with pytest.raises(OSError, match='sample scene-0061-1, camera CAM_BACK: .*broken.jpg.*skip_tokens of the dataset'):
        list(loader(DATASETS.build(config), workers=2))
    slots = shown(loader(DATASETS.build(dict(config, skip_tokens=['scene-0061-1'])), workers=2))
    assert sorted(slots) == [[('scene-0061-0', False), ('scene-0061-2', False)],
                             [('scene-0553-0', False), ('scene-0553-1', True)]]


@pytest.mark.parametrize('kwargs', [dict(filter_empty_gt=True), dict(indices=[0, 2, 3, 4])], ids=str)
def test_a_gap_stays_one_if_the_frame_after_it_is_left_out_too(infos, small_root, tmp_path, kwargs):
    infos['data_list'][2]['instances'] = []
    later = infos['data_list'][2]['timestamp'] + .5
    infos['data_list'].append(dict(infos['data_list'][1], token='later', timestamp=later))
    dataset = DATASETS.build(settings(small_root, save_infos(infos, tmp_path / 'infos.pkl'),
                                      skip_tokens=['scene-0061-1'], **kwargs))
    frames = [dataset.get_data_info(i) for i in range(len(dataset))]
    assert [(frame['token'], frame['prev_exists']) for frame in frames] == [
        ('scene-0061-0', False), ('later', False), ('scene-0553-0', False), ('scene-0553-1', True)]


def test_unknown_skip_tokens_are_named(small_root):
    with pytest.raises(ValueError, match=r"none of the skip_tokens \['scene-1'\]"):
        DATASETS.build(settings(small_root, skip_tokens=['scene-0061-1', 'scene-1']))


def test_without_scene_tokens_each_frame_is_a_scene(infos, small_root, tmp_path):
    for entry in infos['data_list']:
        del entry['scene_token']
    with pytest.warns(UserWarning, match='no scene tokens'):
        dataset = DATASETS.build(settings(small_root, save_infos(infos, tmp_path / 'infos.pkl')))
    assert dataset.scenes() == [[0], [1], [2], [3], [4]]


# Sliding windows


def windows(infos, build_path, root, **kwargs):
    config = settings(root, save_infos(infos, build_path / 'infos.pkl'), **kwargs)
    return DATASETS.build(dict(config, type='georope.NuScenesWindowDataset', serialize_data=False))


@pytest.fixture
def long(infos, small_root, tmp_path):
    """Scenes of 6, 1 and 4 frames: the first frame, at other times, without new images."""
    first = infos['data_list'][0]
    infos['data_list'] = [
        dict(first, token=f'{scene}-{i}', scene_token=scene, timestamp=1e9 + 100 * number + i / 2)
        for number, (scene, length) in enumerate((('a', 6), ('b', 1), ('c', 4))) for i in range(length)]
    return lambda **kwargs: windows(infos, tmp_path, small_root, **kwargs)


def test_windows_stay_in_their_scene(long):
    dataset = long(queue_length=4, random_length=1)
    scenes = dataset.scenes()
    for position in range(11):
        scene = next(scene for scene in scenes if position in scene)
        drawn = set()
        for seed in range(60):
            np.random.seed(seed)
            window = dataset.window(position)
            assert len(window) == 4 and window[-1] == position and window == sorted(window)
            assert set(window) <= set(scene)
            drawn.add(tuple(window[:-1]))
        before = [max(position - i, scene[0]) for i in (4, 3, 2, 1)]
        assert drawn == {tuple(before[:i] + before[i + 1:]) for i in range(4)}  # each of the four is left out at times


def test_windows_without_random_length_are_the_frames_before(long):
    dataset = long(queue_length=3)
    assert [dataset.window(i) for i in range(8)] == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [6, 6, 6], [7, 7, 7]]
    dataset = long(queue_length=3, skip_tokens=['a-2'])
    assert [dataset.window(i) for i in range(5)] == [[0, 0, 0], [0, 0, 1], [2, 2, 2], [2, 2, 3], [2, 3, 4]]


def test_a_packed_window(long):
    dataset = long(queue_length=3)
    packed = dataset[StreamIndex(1, True, (0, 0, 0))]
    frames = packed['data_samples'].frames
    assert packed['inputs']['img'].shape == (3, 6, 3, 96, 256) and packed['inputs']['img'].dtype == torch.uint8
    assert [frame.token for frame in frames] == ['a-0', 'a-0', 'a-1']
    assert [frame.prev_exists for frame in frames] == [False, False, True]
    assert [frame.timestamp for frame in frames] == [0, 0, .5]
    assert len({frame.ego_pose[0, 0] for frame in frames}) == 3  # each its own draw
    assert all(len(frame.gt_instances_3d.labels_3d) and len(frame.gt_cameras) == 6 for frame in frames)
    assert packed['data_samples'].token == 'a-1'
    again = dataset[StreamIndex(1, True, (0, 0, 0))]
    assert torch.equal(packed['inputs']['img'], again['inputs']['img'])
    assert [frame.prev_exists for frame in dataset[4]['data_samples'].frames] == [False, True, True]
    assert dataset[-1]['data_samples'].token == 'c-3'


def test_tests_see_single_frames(long):
    dataset = long(queue_length=3, test_mode=True)
    dataset.pipeline = DATASETS.build(dict(settings(dataset.data_root, dataset.ann_file, test_mode=True), pipeline=TEST
                                           )).pipeline
    assert dataset[1]['inputs']['img'].shape == (6, 3, 96, 256) and dataset[1]['data_samples'].prev_exists


@pytest.mark.parametrize('kwargs', [dict(queue_length=0), dict(queue_length=2, random_length=-1)], ids=str)
def test_refuses_windows_that_cannot_be(kwargs):
    with pytest.raises(ValueError, match='queue_length'):
        NuScenesWindowDataset('infos.pkl', **kwargs)


# Configs


@pytest.mark.parametrize('name', ['nus-3d-camera-streaming', 'nus-3d-camera-sliding-window'])
def test_configs(small_root, monkeypatch, name, request):
    monkeypatch.setenv('NUSCENES_ROOT', str(small_root))
    config = Config.fromfile(request.config.rootpath / f'configs/_base_/datasets/{name}.py')
    config.val_dataloader.dataset.ann_file = 'nuscenes_infos_train.pkl'
    for key in ('train_dataloader', 'val_dataloader'):
        config[key].update(num_workers=0, persistent_workers=False)
    batch = next(iter(Runner.build_dataloader(config.train_dataloader, seed=0)))
    image = batch['inputs']['img'][0]
    assert image.shape[:-2] == ((8, 6, 3) if 'window' in name else (6, 3))
    assert len(batch['inputs']['img']) == (1 if 'window' in name else 2)
    val = Runner.build_dataloader(config.val_dataloader)
    assert [sample.token for batch in val for sample in batch['data_samples']] == sum(SCENES, [])
