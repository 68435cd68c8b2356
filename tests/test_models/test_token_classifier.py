"""The stand-in for pretrained weights: what each token should name, and that a detector takes what it learned."""
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from georope.models import PETR
from georope.registry import MODELS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs/toy'


@pytest.fixture(scope='module')
def classifier() -> PETR:
    init_default_scope('mmdet3d')
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile(CONFIGS / 'backbone_toy.py').model)
    model.init_weights()
    return model


def _sample(*cameras):
    return SimpleNamespace(metainfo={}, gt_cameras=[
        InstanceData(bboxes=torch.tensor([box for box, _ in boxes]).reshape(-1, 4).float(),
                     labels=torch.tensor([label for _, label in boxes], dtype=torch.long)) for boxes in cameras])


def test_token_labels_are_those_of_the_nearest_box(classifier):
    far, near = ((0, 0, 48, 16), 3), ((20, 10, 40, 40), 7)
    labels = classifier.pts_bbox_head.token_labels(_sample([far, near], []), (3, 4))
    assert labels[0].tolist() == [[3, 7, 7, 10], [10, 7, 7, 10], [10, 7, 7, 10]]
    assert (labels[1] == 10).all()


def test_it_learns_what_the_tokens_show(classifier):
    """White boxes of two widths stand for two classes; the loss falls to a fraction within a few steps."""
    boxes = [((16, 16, 48, 48), 0)], [((0, 32, 96, 80), 4)]
    imgs = torch.zeros(1, 2, 3, 96, 256)
    imgs[0, 0, :, 16:48, 16:48] = imgs[0, 1, :2, 32:80, :96] = 2
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-3)
    losses = []
    for _ in range(15):
        loss = classifier.loss(dict(imgs=imgs), [_sample(*boxes)])['loss_cls']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_a_detector_takes_backbone_and_neck(classifier):
    detector = MODELS.build(Config.fromfile(CONFIGS / 'petr-urope_toy.py').model)
    weights = classifier.state_dict()
    fitting = {key for key, value in detector.state_dict().items()
               if key in weights and weights[key].shape == value.shape}
    assert fitting == {key for key in detector.state_dict() if key.startswith('img_')}
