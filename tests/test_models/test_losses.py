import pytest
import torch
from mmdet.models.losses import FocalLoss as MMDetFocalLoss

from georope.registry import MODELS


@pytest.mark.parametrize('num', [0, 7])
def test_focal_loss_is_mmdets(num):
    torch.manual_seed(0)
    logits, labels = torch.randn(num, 4), torch.randint(0, 5, (num, ))  # 4 is the background
    options = dict(use_sigmoid=True, gamma=1.5, alpha=0.3, loss_weight=2.0)
    ours = MODELS.build(dict(type='georope.FocalLoss', **options))(logits, labels, avg_factor=3)
    torch.testing.assert_close(ours, MMDetFocalLoss(**options)(logits, labels, avg_factor=3))
    assert (ours > 0) == (num > 0)
