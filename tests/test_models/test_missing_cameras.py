"""A camera that is missing: results are those of a rig without it, in training and in tests."""
import copy

import numpy as np
import pytest
import torch
from model_factory import tiny_head, tiny_streampetr
from test_streampetr import frames

from georope.registry import MODELS

PER_CAMERA = ('lidar2img', 'cam2img', 'img_shape', 'cam_names')


def widened(data, place, missing=True):
    """The same frames with one more camera at ``place`` of the rig, which is missing: as the loader pads it."""
    data = copy.deepcopy(data)
    for i, (image, sample) in enumerate(zip(data['inputs']['img'], data['data_samples'])):
        pad = torch.zeros_like(image[:1])
        data['inputs']['img'][i] = torch.cat((image[:place], pad, image[place:]))
        metas = {}
        for key in PER_CAMERA:
            values = list(sample.metainfo.get(key, ['A', 'B']))
            if key == 'img_shape' and np.ndim(values) == 1:
                values = [tuple(values)] * len(image)
            values.insert(place, dict(img_shape=(0, 0), cam_names='GONE').get(key, values[0]))
            metas[key] = values
        if 'gt_cameras' in sample:
            cameras = list(sample.gt_cameras)
            cameras.insert(place, cameras[0][:0])
            sample.gt_cameras = cameras
        sample.set_metainfo(dict(metas, missing_cameras=['GONE'] if missing else []))
    return data


@pytest.fixture(params=['PETR', 'StreamPETR', 'chosen tokens'])
def model(request):
    torch.manual_seed(0)
    if request.param == 'PETR':
        stream = tiny_streampetr()
        model = MODELS.build(dict(
            type='georope.PETR', data_preprocessor=dict(type='georope.FramePreprocessor', mean=[120] * 3, std=[57] * 3),
            img_backbone=dict(type='mmdet.ResNet', depth=18, base_channels=8, out_indices=(2, 3), norm_eval=True,
                              norm_cfg=dict(type='BN2d')),
            img_neck=dict(type='georope.CPFPN', in_channels=[32, 64], out_channels=32, num_outs=2),
            pts_bbox_head=dict(type='georope.TokenClassifierHead', num_classes=10, in_channels=32)))
        model.img_backbone, model.img_neck = stream.img_backbone, stream.img_neck
        model.pts_bbox_head = tiny_head(in_channels=32, encoding=dict(type='georope.URoPE'))
        return model.train()
    return tiny_streampetr(roi=dict(train_ratio=.5, infer_ratio=.5) if request.param == 'chosen tokens' else {})


def outcome(model, data, training):
    """Losses, or boxes and scores, as one tensor; of the frames of a stream one after the other."""
    model.train(not training).train(training)  # forgets
    found = []
    for batch in copy.deepcopy(data):
        torch.manual_seed(0)
        inputs = model.data_preprocessor(batch, training)
        with torch.set_grad_enabled(training):
            if training:
                found += [value.reshape(-1) for value in model(**inputs, mode='loss').values()]
            else:
                for sample in model(**inputs, mode='predict'):
                    boxes = sample.pred_instances_3d
                    found += [boxes.bboxes_3d.tensor.flatten(), boxes.scores_3d, boxes.labels_3d.float()]
    return torch.cat(found).detach()


@pytest.mark.parametrize('place', [0, 1, 2])
@pytest.mark.parametrize('training', [False, True])
def test_bit_equal_to_a_rig_without_it(model, training, place):
    stream = [frames(number, 'a') for number in range(3)]
    rig = outcome(model, stream, training)
    assert torch.equal(outcome(model, [widened(batch, place) for batch in stream], training), rig)
    black = outcome(model, [_seen(widened(batch, place, missing=False)) for batch in stream], training)
    assert black.shape != rig.shape or not torch.allclose(black, rig, atol=1e-3)  # it would count


def _seen(data):
    for sample in data['data_samples']:
        sample.set_metainfo(dict(img_shape=[max(sample.metainfo['img_shape'])] * 3))
    return data


@pytest.mark.parametrize('training', [False, True])
def test_in_a_batch_where_others_have_it(model, training):
    """Its tokens are hidden, whatever they hold: equal to rounding, for no sum runs over the same numbers."""
    if getattr(model, 'img_roi_head', None) is not None and model.img_roi_head.infer_ratio < 1:
        pytest.skip('the share of tokens is one of all cameras')
    own, other = frames(0, 'a'), frames(0, 'b')
    if training:
        data = [_mixed(own, other, 'a'), _mixed(own, other, 'b')]
        values = [outcome(model, [batch], True) for batch in data]
        torch.testing.assert_close(*values, atol=1e-4, rtol=1e-4)
        return
    alone = outcome(model, [widened(own, 1)], False)
    both = outcome(model, [_mixed(own, other, 'a')], False)
    torch.testing.assert_close(both[:len(alone)], alone, atol=1e-3, rtol=1e-3)


def _mixed(own, other, content):
    """A sample without camera 1 and one with it; ``content`` is what the hidden image shows."""
    first, second = widened(own, 1), widened(other, 1)
    for sample in second['data_samples']:
        shapes = [size if size != (0, 0) else sample.metainfo['img_shape'][0] for size in sample.metainfo['img_shape']]
        sample.set_metainfo(dict(img_shape=shapes, missing_cameras=[]))
    second['inputs']['img'][0][1] = 90
    first['inputs']['img'][0][1] = 0 if content == 'a' else 200
    return dict(inputs=dict(img=first['inputs']['img'] + second['inputs']['img']),
                data_samples=first['data_samples'] + second['data_samples'])
