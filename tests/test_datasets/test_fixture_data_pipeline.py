"""The golden numbers of the StreamPETR repository's image and BEV augmentation (fixture ``data_pipeline``)."""
import json

import numpy as np
import pytest
from mmdet3d.structures import LiDARInstance3DBoxes
from PIL import Image

from georope.datasets.transforms import BEVAug, ImageAug, LoadCameraImages
from georope.datasets.transforms.image_aug import ImagePlan, uncovered
from georope.datasets.transforms.loading import read_image, warp_full

SETTINGS = ('s0_test', 's1_narrow', 's2_flip', 's3_bev', 's4_flip_bev_trans', 's5_imgrot')
LABELS = dict(gt_bboxes='bboxes', centers_2d='centers2d', gt_bboxes_labels='labels', depths='depths')


class Golden:

    def __init__(self, shared):
        folder = shared / 'fixtures'
        self.arrays = dict(np.load(folder / 'data_pipeline.npz'))
        self.meta = json.loads((folder / 'data_pipeline.json').read_text())
        self.folder = shared / 'data' / 'nuscenes_frame'

    def frame(self, with_2d):
        """The frame before augmentation."""
        names = self.meta['cams']
        paths = [str(self.folder / name) for name in self.meta['image_files']]
        cam2img, lidar2cam = self.arrays['cam_intrinsic_f64'], self.arrays['lidar2cam'].astype(float)
        frame = dict(
            token='token', cam_names=names, img_path=paths, cam2img=cam2img, lidar2cam=lidar2cam,
            lidar2img=cam2img @ lidar2cam, lidar2global=self.arrays['ego_pose'].astype(float),
            images={name: dict(img_path=path, height=900, width=1600) for name, path in zip(names, paths)},
            gt_bboxes_3d=LiDARInstance3DBoxes(self.arrays['gt_center'], box_dim=9, origin=(.5, .5, .5)))
        if with_2d:
            frame.update({ours: [self.arrays[f'in2d.cam{i}.{theirs}'] for i in range(6)]
                          for ours, theirs in LABELS.items()})
        return frame


@pytest.fixture(scope='module')
def golden(shared):
    return Golden(shared)


class ForcedImageAug(ImageAug):
    """Takes the recorded numbers instead of drawing."""

    def __init__(self, setting):
        super().__init__((256, 704), (0.38, 0.55), training=setting['training'])
        self.setting = setting

    def draw(self):
        setting = self.setting
        free = setting['resize_dims'][0] - 704
        return dict(resize=setting['resize'], bottom=0.0, x=setting['crop'][0] / free + 1e-9 if free > 0 else 0.0,
                    flip=setting['flip'], rotate=setting['image_rotate_deg'])


def augmented(golden, name, monkeypatch):
    setting = golden.meta['settings'][name]
    frame = ForcedImageAug(setting).transform(golden.frame(setting['with_2d'] and setting['training']))
    assert [*frame['image_plans'][0].crop] == setting['crop'][:2]
    if setting['bev_rot'] is not None:
        draws = iter([setting['bev_rot'], setting['scale']])
        monkeypatch.setattr(np.random, 'uniform', lambda *limits: next(draws))
        monkeypatch.setattr(np.random, 'normal', lambda scale, size: np.array(setting['trans']))
        frame = BEVAug().transform(frame)
    return frame


@pytest.mark.parametrize('name', SETTINGS)
def test_matrices_and_boxes(golden, name, monkeypatch):
    frame = augmented(golden, name, monkeypatch)
    for ours, theirs, tolerance in (('cam2img', 'intrinsics', 1e-6), ('lidar2img', 'lidar2img', 2e-6)):
        expected = golden.arrays[f'{name}.{theirs}']
        assert np.abs(frame[ours] - expected).max() <= tolerance * np.abs(expected).max()
    # the reference keeps global poses in float32, whose steps are 1e-4 m here
    assert np.abs(frame['lidar2global'] - golden.arrays[f'{name}.ego_pose']).max() < 5e-4
    boxes, expected = frame['gt_bboxes_3d'], golden.arrays[f'{name}.gt_center']
    assert np.abs(boxes.gravity_center.numpy() - expected[:, :3]).max() < 1e-4
    assert np.abs(boxes.tensor[:, 3:6].numpy() - expected[:, 3:6]).max() < 1e-5
    assert np.abs(np.sin((boxes.yaw.numpy() - expected[:, 6]) / 2)).max() < 1e-5
    assert np.abs(boxes.tensor[:, 7:].numpy() - expected[:, 7:]).max() < 1e-5


@pytest.mark.parametrize('name', ['s1_narrow', 's2_flip', 's3_bev', 's4_flip_bev_trans'])
def test_2d_labels(golden, name, monkeypatch):
    frame = augmented(golden, name, monkeypatch)
    kept_by_reference_only = 0
    for i in range(6):
        expected = {ours: golden.arrays[f'{name}.cam{i}.{theirs}'] for ours, theirs in LABELS.items()}
        # The reference always keeps its farthest box, also when nearer ones cover it. That one may be missing here.
        first = int(len(expected['depths']) - len(frame['depths'][i]))
        assert first in (0, 1)
        if first:
            kept_by_reference_only += 1
            assert 0 not in uncovered(expected['gt_bboxes'], (256, 704))
        for key, values in expected.items():
            assert frame[key][i].shape == values[first:].shape
            assert np.abs(frame[key][i] - values[first:]).max(initial=0) < 1e-3, (name, i, key)
    assert kept_by_reference_only <= 6


@pytest.mark.parametrize('name', SETTINGS)
def test_images(golden, name, monkeypatch):
    setting = golden.meta['settings'][name]
    frame = augmented(golden, name, monkeypatch)
    plans = frame['image_plans']
    images = np.stack(LoadCameraImages('full').transform(frame)['img'])
    expected = golden.arrays[f'{name}.img_block16_mean']
    fast = np.stack(LoadCameraImages('reduced').transform(dict(frame, image_plans=plans))['img'])
    whole = [side * setting['resize'] for side in (1600, 900)] == setting['resize_dims']
    # Where 1600 * resize is no whole number, the reference stretches the image by less than a pixel and keeps the exact
    # factor in the matrix. Ours draws the image with the exact factor.
    assert np.abs(blocks(images) - expected).max() < (0.02 if whole else 0.4)
    assert np.abs(blocks(images) - expected).mean() < (2e-3 if whole else 0.02)
    # 'reduced' shows the image in the corners that a rotation leaves black in the reference
    seen = (images.reshape(6, 16, 16, 44, 16, 3).max(-1).min((2, 4)) > 0)
    assert np.abs(blocks(fast) - expected)[seen].mean() < 0.03


@pytest.mark.parametrize('name', ['s3_bev', 's4_flip_bev_trans'])
def test_images_stretched_as_the_reference_does(golden, name):
    """From an image stretched to the reference's rounded size come its pixels: the rounding is all that differs."""
    setting = golden.meta['settings'][name]
    (width, height), crop = setting['resize_dims'], setting['crop']
    images = []
    for file in golden.meta['image_files']:
        image, _ = read_image(str(golden.folder / file))
        stretched = np.array(Image.fromarray(image).resize((width, height)))
        plan = ImagePlan((height, width), 1.0, tuple(crop[:2]), (256, 704), setting['flip'])
        images.append(warp_full(stretched, plan))
    assert np.abs(blocks(np.stack(images)) - golden.arrays[f'{name}.img_block16_mean']).max() < 0.02


def blocks(images):
    """(n, 256, 704, 3) uint8 BGR -> means of 16 x 16 blocks of the normalised RGB image."""
    images = (images[..., ::-1] - np.array([123.675, 116.28, 103.53])) / np.array([58.395, 57.12, 57.375])
    return images.reshape(len(images), 16, 16, 44, 16, 3).mean((2, 4))


def test_draws(golden):
    aug = ImageAug((256, 704), (0.38, 0.55))
    for expected in golden.meta['sample_augmentation_draws']:
        np.random.seed(expected['seed'])
        draw = aug.draw()
        plan = aug.plan((900, 1600), draw)
        assert (plan.resize, plan.flip, plan.rotate) == (expected['resize'], expected['flip'], expected['rotate'])
        assert [*plan.crop] == expected['crop'][:2]
