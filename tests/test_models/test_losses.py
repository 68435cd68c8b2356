import pytest
import torch
from mmdet.models.losses import FocalLoss as MMDetFocalLoss

from georope.registry import MODELS


@pytest.mark.parametrize('num', [0, 7])
def test_focal_loss_is_its_definition(num):
    """Written out in float64 (arXiv 1708.02002), and mmdet's."""
    torch.manual_seed(0)
    logits, labels = torch.randn(num, 4), torch.randint(0, 5, (num, ))  # 4 is the background
    options = dict(use_sigmoid=True, gamma=1.5, alpha=0.3, loss_weight=2.0)
    ours = MODELS.build(dict(type='georope.FocalLoss', **options))(logits, labels, avg_factor=3)
    true = torch.nn.functional.one_hot(labels, 5)[:, :4].bool()
    right = logits.double().sigmoid().where(true, 1 - logits.double().sigmoid())  # probability of what is the case
    share = torch.where(true, 0.3, 0.7)
    expected = 2 * (share * (1 - right) ** 1.5 * -right.log()).sum() / 3
    torch.testing.assert_close(ours, expected.float())
    torch.testing.assert_close(ours, MMDetFocalLoss(**options)(logits, labels, avg_factor=3))
    assert (ours > 0) == (num > 0)
