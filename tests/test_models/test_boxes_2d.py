"""What takes the place of mmdet's 2D costs and losses gives the same numbers and gradients."""
import pytest
import torch
from mmdet.models.losses import L1Loss, QualityFocalLoss
from mmdet.models.task_modules.assigners import BBoxL1Cost, IoUCost
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData

from georope.models import boxes_2d, losses


def some_boxes(num, seed):
    """x, y, x, y; the last one is a point."""
    corner, size = torch.rand(2, num, 2, generator=torch.Generator().manual_seed(seed))
    size[-1:] = 0
    return torch.cat((corner, corner + size), dim=1) * 100


def test_overlaps_are_mmdets():
    a, b = some_boxes(20, 0), some_boxes(20, 1)
    for ours, mode in zip(boxes_2d.overlaps(a, b), ('iou', 'giou')):
        torch.testing.assert_close(ours, bbox_overlaps(a, b, mode, is_aligned=True))
    for ours, mode in zip(boxes_2d.overlaps(a[:, None], b[:7]), ('iou', 'giou')):
        torch.testing.assert_close(ours, bbox_overlaps(a, b[:7], mode))


@pytest.mark.parametrize('ours, theirs', [
    (boxes_2d.GIoUCost(2.0), IoUCost('giou', 2.0)), (boxes_2d.BBoxL1Cost(5.0), BBoxL1Cost('xywh', 5.0))],
    ids=['giou', 'l1'])
def test_costs_are_mmdets(ours, theirs):
    problem = (InstanceData(bboxes=some_boxes(9, 0)), InstanceData(bboxes=some_boxes(4, 1)), dict(img_shape=(80, 120)))
    assert ours(*problem).shape == (9, 4)
    torch.testing.assert_close(ours(*problem), theirs(*problem))


def gradient(loss, x, *args):
    x = x.clone().requires_grad_()
    value = loss(x, *args, avg_factor=torch.tensor(3.0))
    return value, torch.autograd.grad(value, x)[0]


def test_quality_focal_loss_is_mmdets():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 10, generator=generator), torch.randint(0, 11, (50, ), generator=generator)
    target = labels, torch.rand(50, generator=generator) * (labels < 10)
    for ours, theirs in zip(gradient(losses.QualityFocalLoss(2.0, 3.0), logits, target),
                            gradient(QualityFocalLoss(beta=2.0, loss_weight=3.0), logits, target)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('num, share', [(6, 0.5), (6, 0.0), (0, 0.0)])
def test_l1_loss_is_mmdets(num, share):
    """Also without objects, or where nothing of them is known."""
    generator = torch.Generator().manual_seed(0)
    codes, target = torch.randn(2, num, 10, generator=generator)
    weight = (torch.rand(num, 10, generator=generator) < share).float()
    for ours, theirs in zip(gradient(losses.L1Loss(loss_weight=0.25), codes, target, weight),
                            gradient(L1Loss(loss_weight=0.25), codes, target, weight)):
        torch.testing.assert_close(ours, theirs)
