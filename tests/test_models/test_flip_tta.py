"""Mirrored frames: exact geometry; a mirrored world gets the mirrored result; merging."""
import copy

import numpy as np
import pytest
import torch
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.structures import InstanceData
from shrunk_configs import CONFIGS, batch, build, shrink

from georope.models.flip_tta import merge, mirror_boxes, mirror_frames
from georope.registry import MODELS

PATH = CONFIGS / 'petr/petr-urope-hybrid_r50_8xb2-24e_nus-3d.py'  # the 3D embedding looks at cam2img too


def frames(model):
    return model.data_preprocessor(batch(model), False)


def pixels(matrix, points):
    """Pixels (n, 2) and depths (n,) of points (n, 3)."""
    seen = np.c_[points, np.ones(len(points))] @ np.asarray(matrix).T
    return seen[:, :2] / seen[:, 2:3], seen[:, 2]


def test_a_mirrored_point_is_seen_at_the_mirrored_pixel():
    data = frames(build(PATH))
    samples = data['data_samples']
    samples[0].set_metainfo(dict(img_shape=[(64, 96), (60, 90)]))  # the second camera is padded
    imgs, mirrored = mirror_frames(data['inputs']['imgs'], samples)
    points = np.random.RandomState(0).uniform(-30, 30, (50, 3))
    for sample, other, widths in zip(samples, mirrored, ((96, 90), (96, 96))):
        for camera, width in enumerate(widths):
            (before, depth), (after, other_depth) = (pixels(matrix[camera], own) for matrix, own in (
                (sample.lidar2img, points), (other.lidar2img, points * [-1, 1, 1])))
            np.testing.assert_allclose(after, [width, 0] + before * [-1, 1], rtol=1e-9, atol=1e-6)
            np.testing.assert_allclose(other_depth, depth)
            assert other.cam2img[camera][0, 0] == pytest.approx(np.asarray(sample.cam2img)[camera][0, 0])
            if 'lidar2cam' in other:
                assert np.linalg.det(other.lidar2cam[camera][:3, :3]) == pytest.approx(1)
    assert torch.equal(imgs[0, 1, :, :60, :90], data['inputs']['imgs'][0, 1, :, :60, :90].flip(-1))
    assert torch.equal(imgs[0, 1, :, 60:], data['inputs']['imgs'][0, 1, :, 60:])
    again, twice = mirror_frames(imgs, mirrored)
    assert torch.equal(again, data['inputs']['imgs'])
    np.testing.assert_allclose(twice[0].lidar2img, samples[0].lidar2img, rtol=1e-9, atol=1e-9)


def test_mirrored_boxes_have_mirrored_corners():
    boxes = LiDARInstance3DBoxes(torch.randn(20, 9) * torch.tensor([9, 9, 1, 0, 0, 0, 2, 5, 5.]) + torch.tensor(
        [0, 0, 0, 4, 2, 1.5, 0, 0, 0]), box_dim=9)
    mirrored = mirror_boxes(boxes)
    for own, expected in zip(mirrored.corners, boxes.corners * torch.tensor([-1, 1, 1])):
        assert torch.cdist(own, expected).min(1).values.max() < 1e-4
    front = torch.stack((boxes.yaw.cos(), boxes.yaw.sin()), 1)
    torch.testing.assert_close(torch.stack((mirrored.yaw.cos(), mirrored.yaw.sin()), 1), front * torch.tensor([-1, 1]))
    torch.testing.assert_close(mirrored.tensor[:, 7:], boxes.tensor[:, 7:] * torch.tensor([-1, 1]))
    torch.testing.assert_close(mirror_boxes(mirrored).corners, boxes.corners, rtol=1e-4, atol=1e-4)


def in_order(result):
    """By score, then by place; yaw as a direction."""
    boxes = result.bboxes_3d.tensor
    table = torch.cat((result.scores_3d[:, None], result.labels_3d[:, None], boxes[:, :6], boxes[:, 6:7].cos(),
                       boxes[:, 6:7].sin(), boxes[:, 7:]), 1)
    return table


def test_a_mirrored_world_gets_the_mirrored_result():
    """Images flipped and matrices mirrored here by hand; without tta, a random model gives another result."""
    model = build(PATH, dropout=0.).eval()
    data = frames(model)
    world = copy.deepcopy(data)
    world['inputs']['imgs'] = world['inputs']['imgs'].flip(-1)
    width = world['inputs']['imgs'].shape[-1]
    flip = np.array([[-1, 0, width, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.]])
    mirror = np.diag([-1., 1, 1, 1])
    for sample in world['data_samples']:
        intrinsics = flip[:np.shape(sample.cam2img)[-1], :np.shape(sample.cam2img)[-1]]
        sample.set_metainfo(dict(
            lidar2img=flip @ np.asarray(sample.lidar2img) @ mirror,
            cam2img=intrinsics @ np.asarray(sample.cam2img) @ mirror[:len(intrinsics), :len(intrinsics)]))
    differences = []
    for tta in (None, dict(distance=1.0)):
        model.tta = tta
        with torch.no_grad():
            results, others = (model(**copy.deepcopy(each), mode='predict') for each in (data, world))
        for a, b in zip(results, others):
            a, b = a.pred_instances_3d, b.pred_instances_3d
            b.bboxes_3d = mirror_boxes(b.bboxes_3d)
            assert len(a) == len(b) > 5
            differences.append((in_order(a) - in_order(b)).abs().max().item())
    assert min(differences[:2]) > 0.1 and max(differences[2:]) < 1e-3


def result(*rows):
    """Of rows (x, yaw, score, label)."""
    table = torch.tensor(rows).reshape(-1, 4)
    boxes = torch.zeros(len(table), 9)
    boxes[:, 3:6] = 1
    boxes[:, 0], boxes[:, 6] = table[:, 0], table[:, 1]
    return InstanceData(bboxes_3d=LiDARInstance3DBoxes(boxes, box_dim=9), scores_3d=table[:, 2],
                        labels_3d=table[:, 3].long())


def test_merging():
    """Pairs of one class by their scores, means by score, the shorter way round for yaw; singles keep half."""
    one = result((0., 3.0, .9, 0), (.2, 0., .1, 0), (9., 0., .4, 1), (20., 0., .6, 2))
    two = result((.6, -3.0, .3, 0), (9., 0., .4, 2), (20.5, 0., .6, 2))
    for first, second in ((one, two), (two, one)):
        merged = merge(first, second, distance=1.0, max_num=5)
        torch.testing.assert_close(merged.scores_3d, torch.tensor([.6, .6, .2, .2, .05]))
        near = merged.bboxes_3d.tensor[merged.labels_3d == 0]
        assert near[0, 0].item() == pytest.approx(.15) and near[1, 0].item() == pytest.approx(.2)
        assert abs(near[0, 6].item()) == pytest.approx(3.07, abs=.01)  # between 3 and -3 + 2 pi, nearer to 3
        assert sorted(merged.bboxes_3d.tensor[merged.labels_3d == 2, 0].tolist()) == [9, 20.25]
    assert len(merge(one, two, 1.0, 2)) == 2 and len(merge(result(), result(), 1.0, 9)) == 0


def test_streampetr_refuses():
    config = shrink(CONFIGS / 'streampetr/streampetr_r50_8xb2-seq-24e_nus-3d.py')
    with pytest.raises(ValueError, match='tta is for PETR'):
        MODELS.build(dict(config, tta=dict(distance=1.0)))
