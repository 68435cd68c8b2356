"""A head of one's own: the written protocol is all that the detectors ask of it."""
import pytest
import torch
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.structures import InstanceData
from model_factory import stream_sample, tiny_head, tiny_streampetr
from torch import nn

from georope.models.protocols import Head, StreamHead
from georope.registry import MODELS

SIZE = (64, 96)


class OwnMemory:
    resets = 0

    def reset(self):
        self.resets += 1


class OwnHead(nn.Module):
    """Nothing but the protocol."""

    def __init__(self):
        super().__init__()
        self.stride, self.num_classes, self.memory, self.seen = 16, 1, OwnMemory(), []
        self.layer = nn.Linear(32, 1)

    def forward(self, features, metas, tokens=None):
        self.seen.append([meta['token'] for meta in metas])
        return dict(score=self.layer(features.mean((1, 3, 4))))

    def loss(self, features, data_samples, tokens=None):
        return dict(loss_own=self(features, [s.metainfo for s in data_samples])['score'].square().mean())

    def predict(self, features, data_samples, tokens=None):
        self(features, [s.metainfo for s in data_samples])
        return [InstanceData(bboxes_3d=LiDARInstance3DBoxes(torch.ones(1, 9), box_dim=9), scores_3d=torch.ones(1),
                             labels_3d=torch.zeros(1, dtype=torch.long)) for _ in data_samples]


MODELS.register_module(module=OwnHead, force=True)


def build(kind):
    return MODELS.build(dict(
        type=kind,
        data_preprocessor=dict(type='georope.FramePreprocessor', mean=[0, 0, 0], std=[255, 255, 255]),
        img_backbone=dict(type='mmdet.ResNet', depth=18, base_channels=8, out_indices=(2, 3),
                          norm_cfg=dict(type='BN2d')),
        img_neck=dict(type='georope.CPFPN', in_channels=[32, 64], out_channels=32, num_outs=2),
        pts_bbox_head=dict(type='georope.OwnHead')))


@pytest.fixture
def data():
    samples = [stream_sample(scene, 0) for scene in 'ab']
    images = [torch.randint(0, 255, (2, 3, *SIZE), dtype=torch.uint8) for _ in samples]
    return dict(inputs=dict(img=images), data_samples=samples)


def test_our_heads_keep_the_protocol():
    assert isinstance(tiny_head(), Head) and not isinstance(tiny_head(), StreamHead)
    assert isinstance(tiny_streampetr().pts_bbox_head, StreamHead)


@pytest.mark.parametrize('kind', ['georope.PETR', 'georope.StreamPETR'])
def test_a_head_that_has_the_protocol_alone_runs(data, kind):
    model = build(kind)
    assert isinstance(model.pts_bbox_head, StreamHead)
    losses = model(**model.data_preprocessor(data, True), mode='loss')
    losses['loss_own'].backward()
    assert next(model.img_backbone.parameters()).grad.abs().sum() > 0
    found = model.eval()(**model.data_preprocessor(data, False), mode='predict')
    assert [len(sample.pred_instances_3d.scores_3d) for sample in found] == [1, 1]
    assert model.pts_bbox_head.seen == [[sample.token for sample in data['data_samples']]] * 2


def test_the_memory_of_an_own_head_is_reset_before_each_window(data):
    model = build('georope.StreamPETR')
    windows = dict(inputs=dict(img=[torch.stack((image, image)) for image in data['inputs']['img']]), data_samples=[])
    for sample in data['data_samples']:
        windows['data_samples'].append(sample.clone())
        windows['data_samples'][-1].frames = [sample, sample]
    losses = model(**model.data_preprocessor(windows, True), mode='loss')
    assert set(losses) == {'frame_1_loss_own'}
    assert model.pts_bbox_head.memory.resets == 1 and len(model.pts_bbox_head.seen) == 2
