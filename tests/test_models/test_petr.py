import copy

import numpy as np
import pytest
import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.registry import DefaultScope
from model_factory import RECIPE, UROPE, cameras, sample

from georope.registry import MODELS


def build(head=None, **options):
    torch.manual_seed(0)
    config = dict(
        type='georope.PETR',
        data_preprocessor=dict(
            type='mmdet3d.Det3DDataPreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375],
            bgr_to_rgb=True, pad_size_divisor=32),
        img_backbone=dict(type='mmdet.ResNet', depth=18, out_indices=(2, 3), norm_eval=True,
                          norm_cfg=dict(type='BN2d', requires_grad=False)),
        img_neck=dict(type='georope.CPFPN', in_channels=[256, 512], out_channels=32, num_outs=2),
        pts_bbox_head=dict(RECIPE, in_channels=32, embed_dims=32, num_query=10, denoising=dict(groups=2),
                           encoding=UROPE,
                           decoder=dict(num_layers=2, num_heads=4, feedforward_channels=32)) | (head or {})) | options
    model = MODELS.build(config)
    model.init_weights()
    return model


@pytest.fixture(scope='module')
def model():
    return build()


def batch(*sizes, **options):
    """What the data loader gives: images as uint8, samples of any size."""
    rng = np.random.RandomState(0)
    samples = [sample(f'token-{i}', size=size, seed=i, **options) for i, size in enumerate(sizes)]
    images = [torch.from_numpy(rng.randint(0, 255, (2, 3, *size), dtype=np.uint8)) for size in sizes]
    return dict(inputs=dict(img=images), data_samples=samples)


def call(model, data, mode, training):
    model.train(training)
    return model(**model.data_preprocessor(copy.deepcopy(data), training), mode=mode)


def test_loss_and_predict(model):
    losses = call(model, batch((64, 96), (64, 96)), 'loss', True)
    total, logs = model.parse_losses(losses)
    total.backward()
    assert total.isfinite() and logs['dn_loss_bbox'] > 0
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    predictions = call(model, batch((64, 96), (64, 96)), 'predict', False)
    assert [p.token for p in predictions] == ['token-0', 'token-1']
    for prediction in predictions:
        assert isinstance(prediction, Det3DDataSample)
        assert prediction.pred_instances_3d.bboxes_3d.tensor.shape == (len(prediction.pred_instances_3d.scores_3d), 9)
    raw = call(model, batch((64, 96)), 'tensor', False)
    assert raw['logits'].shape == (2, 1, 10, 10)


def test_grid_mask_in_training_only():
    with DefaultScope.overwrite_default_scope('mmdet3d'):  # as the runner does
        masked = build(data_preprocessor=dict(type='mmdet3d.Det3DDataPreprocessor', pad_size_divisor=32,
                                              batch_augments=[dict(type='georope.GridMask', prob=1.0)]))
    data = batch((64, 96))
    images = [masked.data_preprocessor(copy.deepcopy(data), training)['inputs']['imgs'] for training in (True, False)]
    assert (images[0] == 0).float().mean() > 0.1 > (images[1] == 0).float().mean()
    assert masked.parse_losses(call(masked, data, 'loss', True))[0].isfinite()


def test_odd_sizes(model):
    """250 x 706 is padded to 256 x 736; beside a smaller image, and in training too."""
    data = batch((250, 706), (180, 600))
    seen = []
    hook = model.pts_bbox_head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-2:]))
    together = call(model, data, 'predict', False)
    first = dict(inputs=dict(img=data['inputs']['img'][:1]), data_samples=data['data_samples'][:1])
    alone, = call(model, first, 'predict', False)
    hook.remove()
    assert seen == [(16, 46), (16, 46)] and together[0].pad_shape == (256, 736)
    torch.testing.assert_close(together[0].pred_instances_3d.bboxes_3d.tensor, alone.pred_instances_3d.bboxes_3d.tensor,
                               atol=1e-3, rtol=0)
    assert model.parse_losses(call(model, data, 'loss', True))[0].isfinite()


def test_one_bad_pixel_names_the_sample(model):
    """Not a loss of 0, not a NaN that spreads."""
    data = batch((64, 96), (64, 96))
    data['inputs']['img'] = [image.float() for image in data['inputs']['img']]
    data['inputs']['img'][1][0, 1, 30, 40] = torch.inf
    for mode in ('loss', 'predict'):
        with pytest.raises(FloatingPointError, match=r"\['token-1'\]"):
            call(model, data, mode, mode == 'loss')


def test_one_camera(model):
    data = batch((64, 96))
    lidar2img, cam2img = cameras(1)
    data['inputs']['img'][0] = data['inputs']['img'][0][:1]
    data['data_samples'][0].set_metainfo(dict(lidar2img=lidar2img, cam2img=cam2img, img_shape=[(64, 96)]))
    assert len(call(model, data, 'predict', False)[0].pred_instances_3d) > 0
    assert model.parse_losses(call(model, data, 'loss', True))[0].isfinite()


def test_training_learns_one_frame():
    """A few steps on one frame bring the loss down."""
    model = build(head=dict(denoising=None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = batch((64, 96))
    totals = []
    for _ in range(12):
        total, _ = model.parse_losses(call(model, data, 'loss', True))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert totals[-1] < 0.8 * totals[0]


def test_wrong_stride_is_refused():
    model = build(head=dict(stride=8))
    with pytest.raises(ValueError, match='stride=8'):
        call(model, batch((64, 96)), 'predict', False)


def test_wrong_number_of_matrices_names_the_sample(model):
    data = batch((64, 96))
    data['data_samples'][0].set_metainfo(dict(lidar2img=cameras(3)[0]))
    with pytest.raises(ValueError, match='token-0'):
        call(model, data, 'predict', False)
