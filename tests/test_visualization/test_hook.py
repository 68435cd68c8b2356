"""Pictures during testing, from batches as the test loop has them."""
import copy
import os
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from made_up_rig import HEIGHT, WIDTH, camera
from mmdet3d.registry import MODELS
from mmdet3d.structures import Det3DDataSample, LiDARInstance3DBoxes
from mmengine.structures import InstanceData

from georope.registry import HOOKS
from georope.visualization import Boxes, draw_frame

CLASSES = ('car', 'bus')


def sample(token: str, scores=(.9, .1), **metainfo) -> Det3DDataSample:
    rows = torch.tensor([[0, 9, -1, 4, 2, 2, .4, 0, 3], [3, 14, -1, 4, 2, 2, .4, 0, 3]])
    found = Det3DDataSample(metainfo=dict(token=token, lidar2img=np.stack([camera(0), camera(.5)]), **metainfo))
    found.pred_instances_3d = InstanceData(bboxes_3d=LiDARInstance3DBoxes(rows[:len(scores)], box_dim=9),
                                           scores_3d=torch.tensor(scores),
                                           labels_3d=torch.arange(len(scores)))
    return found


def images(value: int, dtype=torch.uint8) -> torch.Tensor:
    return torch.full((2, 3, HEIGHT, WIDTH), value, dtype=dtype)


def runner_in(folder):
    dataset = SimpleNamespace(metainfo=dict(classes=CLASSES))
    return SimpleNamespace(work_dir=str(folder), timestamp='now', test_dataloader=SimpleNamespace(dataset=dataset))


def build(**options):
    return HOOKS.build(dict(type='georope.DetectionVisualizationHook', **options))


def test_one_file_per_frame_named_by_its_token(tmp_path):
    hook = build(draw=True, test_out_dir='show', score_thr=.5)
    for first in range(0, 6, 2):  # three batches of two
        tokens = [f'token{first}', f'token{first + 1}']
        batch = dict(inputs=dict(img=[images(50), images(90)]))
        hook.after_test_iter(runner_in(tmp_path), first, batch, [sample(token) for token in tokens])
    hook.after_test(runner_in(tmp_path))
    assert sorted(os.listdir(tmp_path / 'now' / 'show')) == [f'token{i}.png' for i in range(6)]
    assert os.listdir(tmp_path) == ['now']


@pytest.mark.parametrize('dtype', [torch.uint8, torch.float32])
def test_boxes_above_the_threshold_on_the_images_the_network_saw(tmp_path, dtype):
    """The batch stays as it was when the preprocessor has normalised and padded it."""
    batch = dict(inputs=dict(img=[images(70, dtype)]), data_samples=[sample('a')])
    before = copy.deepcopy(batch['inputs'])
    MODELS.build(dict(type='Det3DDataPreprocessor', mean=[1, 2, 3], std=[4, 5, 6], bgr_to_rgb=True,
                      pad_size_divisor=32))(batch, False)
    assert torch.equal(batch['inputs']['img'][0], before['img'][0])
    build(draw=True, test_out_dir='show', score_thr=.5).after_test_iter(
        runner_in(tmp_path), 0, batch, batch['data_samples'])
    picture = cv2.imread(str(tmp_path / 'now/show/a.png'))
    one = Boxes.from_instances(sample('a', scores=(.9,)).pred_instances_3d, CLASSES)
    expected = draw_frame([np.full((HEIGHT, WIDTH, 3), 70, np.uint8)] * 2, sample('a').lidar2img, one)
    np.testing.assert_array_equal(picture[64:], expected[64:])  # below the headline


def test_truth_is_drawn_where_it_is_packed(tmp_path):
    hook = build(draw=True, test_out_dir='show')
    with_truth = sample('truth')
    with_truth.gt_instances_3d = InstanceData(
        bboxes_3d=LiDARInstance3DBoxes(torch.tensor([[0, 12., -1, 4, 2, 2, .4]])), labels_3d=torch.tensor([1]))
    for found in (sample('none'), with_truth):
        hook.after_test_iter(runner_in(tmp_path), 0, dict(inputs=dict(img=[images(70)])), [found])
    with_truth, none = (cv2.imread(str(tmp_path / f'now/show/{name}.png')) for name in ('truth', 'none'))
    assert (with_truth == 255).all(-1).sum() > (none == 255).all(-1).sum() + 50


def test_does_nothing_unless_told(tmp_path):
    build().after_test_iter(runner_in(tmp_path), 0, dict(inputs=dict(img=[images(50)])), [sample('a')])
    assert not os.listdir(tmp_path)


def test_options_that_make_no_sense():
    with pytest.raises(ValueError, match='--show-dir'):
        build(draw=True)
    with pytest.raises(ValueError, match="'lidar_det' is not possible"):
        build(vis_task='lidar_det')
