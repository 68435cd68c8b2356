"""Transforms: one lidar2img that is right for boxes, labels and pixels."""
import copy

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmdet3d.models import Det3DDataPreprocessor
from mmdet3d.registry import TRANSFORMS
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.dataset import Compose, pseudo_collate
from small_nuscenes import TRAIN

from georope.datasets.transforms import BEVAug, ImageAug, LoadCameraImages, PackCameraInputs
from georope.datasets.transforms.image_aug import ImagePlan, uncovered

ANGLES = st.floats(-np.pi, np.pi)


def random_frame(seed, cameras=2, size=(900, 1600)):
    """Random cameras around the origin and boxes in front of the first one."""
    rng = np.random.RandomState(seed)
    cam2img, lidar2cam = np.tile(np.eye(4), (2, cameras, 1, 1))
    for i in range(cameras):
        cam2img[i, :2, :3] = [[rng.uniform(500, 1500), rng.uniform(-5, 5), rng.uniform(700, 900)],
                              [0, rng.uniform(500, 1500), rng.uniform(400, 500)]]
        lidar2cam[i, :3, :3] = np.linalg.qr(rng.randn(3, 3))[0]
        lidar2cam[i, :3, :3] *= np.linalg.det(lidar2cam[i, :3, :3])
        lidar2cam[i, :3, 3] = rng.uniform(-2, 2, 3)
    pixels, depths = rng.uniform(0, size[::-1], (12, 2)), rng.uniform(3, 50, (12, 1))
    image_points = np.concatenate([pixels * depths, depths, np.ones((12, 1))], axis=1)
    centers = (image_points @ np.linalg.inv(cam2img[0] @ lidar2cam[0]).T)[:, :3]
    boxes = np.concatenate(
        [centers, rng.uniform(.5, 5, (12, 3)), rng.uniform(-3, 3, (12, 1)), rng.randn(12, 2)], axis=1)
    pose = np.eye(4)
    pose[:3, 3] = rng.uniform(-2000, 2000, 3)
    pose[:3, :3] = np.linalg.inv(lidar2cam[-1, :3, :3])
    names = [f'CAM_{i}' for i in range(cameras)]
    return dict(
        token='token', cam_names=names, cam2img=cam2img, lidar2cam=lidar2cam, lidar2img=cam2img @ lidar2cam,
        lidar2global=pose, images={name: dict(img_path='', height=size[0], width=size[1]) for name in names},
        gt_bboxes_3d=LiDARInstance3DBoxes(boxes.astype(np.float32), box_dim=9, origin=(.5, .5, .5)))


def project(lidar2img, points):
    pixels = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ lidar2img.T
    return pixels[:, :2] / pixels[:, 2:3], pixels[:, 2]


def moved(matrix, points):
    return points @ matrix[:-1, :-1].T + matrix[:-1, -1]


# Geometry


@given(st.integers(0, 2**16), ANGLES, st.floats(.5, 2), st.floats(0, 5))
def test_bev_aug_moves_nothing_in_the_images(seed, angle, scale, shift):
    before = random_frame(seed)
    np.random.seed(seed)
    aug = BEVAug((angle, angle), (scale, scale), (shift, shift, shift))
    after = aug.transform(copy.deepcopy(before))
    transform = np.linalg.inv(after['lidar2global']) @ before['lidar2global']
    points = before['gt_bboxes_3d'].corners.numpy().astype(float).reshape(-1, 3)
    for i in range(2):
        pixels, depths = project(before['lidar2img'][i], points)
        new_pixels, new_depths = project(after['lidar2img'][i], moved(transform, points))
        front = np.abs(depths) > 0.1
        assert np.abs(new_pixels - pixels)[front].max() < 1e-3
        assert np.allclose(new_depths, depths, atol=1e-6)
        assert np.allclose(after['lidar2img'][i], after['cam2img'][i] @ after['lidar2cam'][i])
    # the boxes, in float32, go the same way
    new_points = after['gt_bboxes_3d'].corners.numpy().reshape(-1, 3)
    assert np.abs(new_points - moved(transform, points)).max() < 1e-3
    velocity = before['gt_bboxes_3d'].tensor[:, 7:].numpy()
    assert np.allclose(after['gt_bboxes_3d'].tensor[:, 7:].numpy(), velocity @ transform[:2, :2].T, atol=1e-4)
    # a drawn angle turns points clockwise, then they are scaled
    expected = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    assert np.allclose(transform[:2, :2], expected, atol=1e-6)


def test_bev_aug_keeps_unknown_velocities_and_empty_frames():
    frame = random_frame(0)
    frame['gt_bboxes_3d'].tensor[3, 7:] = float('nan')
    boxes = BEVAug((1, 1), (2, 2)).transform(frame)['gt_bboxes_3d'].tensor
    assert boxes.isnan().any(1).nonzero().tolist() == [[3]] and boxes[3, 7:].isnan().all()
    frame['gt_bboxes_3d'] = frame['gt_bboxes_3d'][:0]
    assert BEVAug().transform(frame)['gt_bboxes_3d'].tensor.shape == (0, 9)


SIZES = st.sampled_from([(900, 1600), (901, 1599), (250, 706)])
PLANS = st.builds(
    ImagePlan, SIZES, st.floats(.1, 2), st.tuples(st.integers(-90, 300), st.integers(-90, 200)),
    st.sampled_from([(256, 704), (255, 333)]), st.booleans(), st.one_of(st.just(0.), st.floats(-180, 180)))


@given(PLANS)
def test_image_matrix_by_its_steps(plan):
    """Resize, crop, flip and rotate points one after the other."""
    points = np.random.RandomState(0).uniform(0, 1600, (9, 2))
    height, width = plan.size
    expected = points * plan.resize - plan.crop
    if plan.flip:
        expected[:, 0] = width - expected[:, 0]
    x, y = (expected - (width / 2, height / 2)).T
    angle = np.radians(plan.rotate)  # counter-clockwise as seen, with y down
    turned = np.stack([np.cos(angle) * x + np.sin(angle) * y, -np.sin(angle) * x + np.cos(angle) * y], axis=1)
    assert np.abs(moved(plan.matrix, points) - (turned + (width / 2, height / 2))).max() < 1e-9


@given(st.integers(0, 2**16), st.floats(-180, 180))
def test_image_aug_moves_projections_by_the_plan(seed, rotation):
    frame = random_frame(seed)
    np.random.seed(seed)
    aug = ImageAug((256, 704), (.3, 1.), (0, .3), (rotation, rotation), rand_flip=True)
    after = aug.transform(copy.deepcopy(frame))
    points = frame['gt_bboxes_3d'].gravity_center.numpy().astype(float)
    for i, plan in enumerate(after['image_plans']):
        expected = moved(plan.matrix, project(frame['lidar2img'][i], points)[0])
        found = project(after['lidar2img'][i], points)[0]
        assert np.abs(found - expected).max() < 1e-6 * max(1, np.abs(expected).max())
    assert (frame['cam2img'][:, :2] != after['cam2img'][:, :2]).any() and after['lidar2img'].dtype == np.float64
    assert (frame['lidar2cam'] == after['lidar2cam']).all()


@pytest.mark.parametrize('rotation', [0, 5, -30])
@pytest.mark.parametrize('seed', range(4))
def test_2d_labels_follow_the_3d_boxes(seed, rotation):
    """Projected 3D centres stay on centers_2d, also under rotation; boxes hold the projected corners they held."""
    frame = random_frame(seed, cameras=1)
    boxes = frame['gt_bboxes_3d']
    centers, depths = project(frame['lidar2img'][0], boxes.gravity_center.numpy())
    half = np.random.RandomState(seed).uniform(20, 200, (12, 2))
    bboxes = np.clip(np.concatenate([centers - half, centers + half], 1), 0, [1600, 900] * 2)
    frame.update(gt_bboxes=[bboxes.astype(np.float32)], centers_2d=[centers.astype(np.float32)],
                 gt_bboxes_labels=[np.arange(12)], depths=[depths.astype(np.float32)])
    np.random.seed(seed)
    after = ImageAug((256, 704), (.38, .55), rot_lim=(rotation, rotation)).transform(frame)
    labels = after['gt_bboxes_labels'][0]
    assert 3 < len(labels) < 12 and sorted(set(labels)) == sorted(labels)
    assert (np.diff(after['depths'][0]) <= 0).all() and np.allclose(after['depths'][0], depths[labels])
    projected = project(after['lidar2img'][0], boxes.gravity_center.numpy()[labels])[0]
    inside = ((projected > 0) & (projected < (704, 256))).all(1)
    assert inside.sum() > 1
    assert np.abs(after['centers_2d'][0] - projected)[inside].max() < 1e-2
    assert np.abs(after['centers_2d'][0] - np.clip(projected, 0, (704, 256))).max() < 1e-2
    corners = bboxes[labels][:, [0, 1, 0, 3, 2, 1, 2, 3]].reshape(-1, 2)
    corners = moved(after['image_plans'][0].matrix, corners).reshape(-1, 4, 2)
    expected = np.clip(np.concatenate([corners.min(1), corners.max(1)], 1), 0, [704, 256] * 2)
    assert np.abs(after['gt_bboxes'][0] - expected).max() < 1e-2


def test_covered_boxes():
    """Farthest first: a box behind a larger one is left out, also the farthest of all; one that looks out is kept."""
    boxes = np.array([[10, 10, 20, 20], [30, 30, 60, 60], [5, 5, 40, 40], [80, 80, 80.9, 90]], dtype=np.float32)
    assert uncovered(boxes, (100, 100)).tolist() == [1, 2]  # the last one holds no whole pixel
    assert uncovered(boxes[:0], (100, 100)).tolist() == []
    assert uncovered(boxes[[2, 0]], (100, 100)).tolist() == [0, 1]


def test_the_test_plan_is_fixed():
    aug = ImageAug((256, 704), (.38, .55), training=False)
    np.random.seed(3)
    state = np.random.get_state()[1].tolist()
    frame = aug.transform(random_frame(0))
    assert np.random.get_state()[1].tolist() == state
    assert frame['image_plans'][0] == ImagePlan((900, 1600), .44, (0, 140), (256, 704), False, 0.)
    # the whole height is kept, though 343 * (height / 343) may come out a hair below height
    heights = range(172, 343)
    assert any(int(343 * (height / 343)) < height for height in heights)
    for height in heights:
        assert ImageAug((height, 16), (1, 1), training=False).plan((343, 32), {}).crop[1] == 0


def test_cameras_of_different_sizes_share_the_draws():
    frame = random_frame(0)
    frame['images']['CAM_1'].update(height=1080, width=1920)
    np.random.seed(0)
    first, second = ImageAug((256, 704), (.5, .9)).transform(frame)['image_plans']
    assert first.resize == second.resize and first.flip == second.flip
    free = [int(plan.source[1] * plan.resize) - 704 for plan in (first, second)]
    assert first.crop[0] / free[0] == pytest.approx(second.crop[0] / free[1], abs=2e-3)
    assert [int(plan.source[0] * plan.resize) - plan.crop[1] for plan in (first, second)] == [256, 256]


# Pixels


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
@pytest.mark.parametrize('decode', ['full', 'reduced'])
@pytest.mark.parametrize('size', [(360, 640), (361, 643)])
@pytest.mark.parametrize('resize, crop, flip, rotate', [
    (.5, (20, 30), False, 0.), (.47, (-10, 20), True, 0.), (.31, (3, 5), False, 7.), (.24, (0, 0), True, -20.),
    (.1, (-50, -30), False, 0.), (1.3, (200, 100), True, 3.), (.76, (0, 0), False, 0.),
])
def test_pixels_lie_where_the_matrix_says(tmp_path, suffix, decode, size, resize, crop, flip, rotate):
    """A soft spot drawn in the file comes out at its position times the matrix, to a few hundredths of a pixel."""
    path = str(tmp_path / f'image.{suffix}')
    plan = ImagePlan(size, resize, crop, (96, 160), flip, rotate)
    target = np.array([80.3, 48.7])
    spot = moved(np.linalg.inv(plan.matrix), target)
    x, y = np.meshgrid(np.arange(size[1]) + .5, np.arange(size[0]) + .5)
    soft = 220 * np.exp(-((x - spot[0])**2 + (y - spot[1])**2) / 2 / (3 / resize)**2)
    cv2.imwrite(path, np.stack([soft] * 3, -1).round().astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 100])

    frame = dict(token='token', cam_names=['CAM'], img_path=[path], image_plans=[plan])
    (image, ) = LoadCameraImages(decode).transform(frame)['img']
    assert image.shape == (96, 160, 3) and image.dtype == np.uint8
    x, y = np.meshgrid(np.arange(160) + .5, np.arange(96) + .5)
    weight = image.astype(float).mean(-1) * ((x - target[0])**2 + (y - target[1])**2 < 12**2)
    found = np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()
    assert np.abs(found - target).max() < .05
    assert abs(weight.max() - 220) < 12


@pytest.mark.parametrize('resize', [.38, .44, .5, .55])
def test_reduced_decoding_of_real_images(shared, resize):
    """A grey level of 255 on average from the exact pixels, without bias."""
    paths = sorted((shared / 'data' / 'nuscenes_scene0103' / 'samples').glob('CAM_*/*.jpg'))[::6]
    plan = ImagePlan((900, 1600), resize, (max(0, int(1600 * resize) - 704) // 2, int(900 * resize) - 256), (256, 704))
    frame = dict(token='token', cam_names=[''] * len(paths), img_path=[str(path) for path in paths])
    exact, fast = (np.stack(LoadCameraImages(decode).transform(dict(frame, image_plans=[plan] * len(paths)))['img'])
                   .astype(float) for decode in ('full', 'reduced'))
    assert np.abs(fast - exact).mean() < 1
    assert np.sqrt(((fast - exact)**2).mean()) < 2
    assert abs((fast - exact).mean()) < .1


def test_loading_without_a_plan(small_root):
    path = next((small_root / 'samples' / 'CAM_BACK').glob('scene*.jpg'))
    frame = LoadCameraImages().transform(dict(token='', cam_names=['CAM_BACK'], img_path=[str(path)]))
    assert frame['img'][0].shape == (180, 320, 3) and frame['img_shape'] == frame['ori_shape'] == [(180, 320)]
    with pytest.raises(ValueError, match="decode='half'"):
        LoadCameraImages('half')


def test_image_size_from_the_header(small_root):
    path = str(next((small_root / 'samples' / 'CAM_BACK').glob('scene*.jpg')))
    frame = random_frame(0, cameras=1)
    frame['images']['CAM_0'] = dict(img_path=path, height=None, width=None)
    assert ImageAug((96, 256), (1, 1)).transform(frame)['image_plans'][0].source == (180, 320)


# Photometric, packing, preprocessing


def test_mmdet3ds_photometric_distortion_fits(infos, build):
    """Between loading and packing; it takes uint8 and gives float32, which the preprocessor takes as well."""
    photometric = dict(type='MultiViewWrapper', transforms=[dict(type='PhotoMetricDistortion3D')],
                       process_fields=['img'], override_aug_config=False)
    pipeline = [*TRAIN[:3], photometric, *TRAIN[3:]]
    np.random.seed(1)
    plain, distorted = build(infos, pipeline=TRAIN), build(infos, pipeline=pipeline)
    data = distorted[0]
    assert data['inputs']['img'].dtype == torch.float32
    assert data['inputs']['img'].shape == plain[0]['inputs']['img'].shape
    assert data['data_samples'].img_shape == [(96, 256)] * 6
    assert data['data_samples'].lidar2img.shape == (6, 4, 4)


def test_pack(infos, build):
    data = build(infos, pipeline=TRAIN)[0]
    image, sample = data['inputs']['img'], data['data_samples']
    assert image.dtype == torch.uint8 and image.is_contiguous()
    assert sample.gt_instances_3d.bboxes_3d.tensor.shape[1] == 9
    for camera in sample.gt_cameras:
        assert camera.bboxes.dtype == camera.centers_2d.dtype == camera.depths.dtype == torch.float32
        assert camera.labels.dtype == torch.int64
    assert sum(map(len, sample.gt_cameras)) > 0
    assert sample.lidar2global.dtype == sample.lidar2img.dtype == np.float64 and type(sample.timestamp) is float
    assert TRANSFORMS.build(dict(type='georope.PackCameraInputs')).meta_keys == PackCameraInputs().meta_keys


def test_whole_pipeline_keeps_boxes_on_their_pixels(infos, build):
    """Global position and pixels of a box: after all augmentations the same as before, through one lidar2img."""
    plain = build(infos, use_valid_flag=False).get_data_info(1)
    boxes = plain['ann_info']['gt_bboxes_3d']
    centers = moved(plain['lidar2global'], boxes.gravity_center.numpy().astype(float))
    for seed in range(3):
        np.random.seed(seed)
        sample = build(infos, pipeline=TRAIN, use_valid_flag=False)[1]['data_samples']
        augmented = moved(sample.lidar2global, sample.gt_instances_3d.bboxes_3d.gravity_center.numpy().astype(float))
        assert np.abs(augmented - centers).max() < 1e-3
        for i, camera in enumerate(sample.gt_cameras):
            pixels, depths = project(sample.lidar2img[i], sample.gt_instances_3d.bboxes_3d.gravity_center.numpy())
            for center, depth in zip(camera.centers_2d.numpy(), camera.depths.numpy()):
                error = np.abs(np.clip(pixels, 0, (256, 96)) - center).max(1) + np.abs(depths - depth)
                assert error.min() < .02


def test_preprocessor_pads_odd_sizes(infos, build):
    """Two sizes in a batch: both are padded to one multiple of 32, img_shape stays the valid size."""
    def data(final_dim):
        pipeline = copy.deepcopy(TRAIN)
        pipeline[1]['final_dim'] = final_dim
        return build(infos, pipeline=pipeline)[0]

    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    preprocessor = Det3DDataPreprocessor(mean=mean, std=std, bgr_to_rgb=True, pad_size_divisor=32)
    batch = pseudo_collate([data((250, 706)), data((96, 256))])
    before = batch['inputs']['img'][0].float()
    out = preprocessor(copy.deepcopy(batch), training=True)
    assert out['inputs']['imgs'].shape == (2, 6, 3, 256, 736)
    expected = (before[:, [2, 1, 0]] - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(out['inputs']['imgs'][0, ..., :250, :706], expected, atol=1e-5)
    assert (out['inputs']['imgs'][0, ..., 250:, :] == 0).all() and (out['inputs']['imgs'][1, ..., 96:, :] == 0).all()
    assert [sample.img_shape[0] for sample in out['data_samples']] == [(250, 706), (96, 256)]
    assert out['data_samples'][1].batch_input_shape == (256, 736)


def test_compose_by_type():
    assert len(Compose([TRANSFORMS.build(item) for item in TRAIN]).transforms) == len(TRAIN)
