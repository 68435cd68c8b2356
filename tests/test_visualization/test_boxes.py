import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.structures import InstanceData

from georope.evaluation.results import devkit_boxes, to_global
from georope.visualization.boxes import EDGES, FOOTPRINT, FRONT, NEAR, Boxes, project_segments

CLASSES = ('car', 'bus')


def instances(count: int, seed: int = 0) -> InstanceData:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.uniform(-50, 50, (count, 2)), rng.uniform(-2, 2, (count, 1)),
                           rng.uniform(.5, 9, (count, 3)), rng.uniform(-4, 4, (count, 1)),
                           rng.uniform(-9, 9, (count, 2))], axis=1)
    return InstanceData(bboxes_3d=LiDARInstance3DBoxes(torch.tensor(rows, dtype=torch.float32), box_dim=9),
                        scores_3d=torch.tensor(rng.uniform(0, 1, count)), labels_3d=torch.arange(count) % 2)


def test_corners_are_mmdet3ds():
    found = instances(20)
    corners = Boxes.from_instances(found, CLASSES).corners
    # The same eight corners in another order: ours counts z, y, x in bits, mmdet3d goes round.
    np.testing.assert_allclose(corners, found.bboxes_3d.corners.numpy()[:, [0, 1, 3, 2, 4, 5, 7, 6]], atol=1e-4)


def test_edges_front_and_footprint():
    box = Boxes.build([[0, 0, 0]], [[4, 2, 1]], [np.eye(3)], ['car'], [[0, 0]])
    lengths = np.linalg.norm(np.diff(box.corners[0][EDGES], axis=1)[:, 0], axis=1)
    assert sorted(lengths) == [1] * 4 + [2] * 4 + [4] * 4
    assert (box.corners[0][FRONT, 0] == 2).all() and (box.corners[0][FOOTPRINT, 2] == -.5).all()
    around = np.roll(box.corners[0][FOOTPRINT], -1, 0) - box.corners[0][FOOTPRINT]
    assert sorted(np.linalg.norm(around, axis=1)) == [2, 2, 4, 4]  # round, not crosswise


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 4))
def test_result_file_and_data_sample_draw_the_same(seed, count):
    """LiDAR frame -> global result file -> LiDAR frame, under any pose."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    pose = np.eye(4)
    pose[:3, :3] = rotation * np.linalg.det(rotation)
    pose[:3, 3] = rng.uniform(-2000, 2000, 3)
    found = instances(count, seed)
    direct = Boxes.from_instances(found, CLASSES)
    frame = to_global('t', found.bboxes_3d, found.scores_3d, found.labels_3d, pose)
    back = Boxes.from_results(devkit_boxes(frame, CLASSES), pose)
    order = np.argsort(-direct.scores, kind='stable')
    np.testing.assert_allclose(back.corners, direct.corners[order], atol=1e-4)
    np.testing.assert_allclose(back.scores, direct.scores[order], atol=1e-6)
    assert back.names == [direct.names[i] for i in order]


def test_velocity_comes_back_from_a_result_file():
    pose = np.array([[0., -1, 0, 5], [1, 0, 0, 6], [0, 0, 1, 7], [0, 0, 0, 1]])
    found = instances(5)
    frame = to_global('t', found.bboxes_3d, found.scores_3d, found.labels_3d, pose)
    back = Boxes.from_results(devkit_boxes(frame, CLASSES), pose)
    order = np.argsort(-found.scores_3d.numpy())
    np.testing.assert_allclose(back.velocity, found.bboxes_3d.tensor[order, 7:], atol=1e-5)


def test_score_threshold_and_unknown_velocity():
    found = instances(10)
    found.bboxes_3d = LiDARInstance3DBoxes(found.bboxes_3d.tensor[:, :7], box_dim=7)
    boxes = Boxes.from_instances(found, CLASSES)
    kept = boxes.above(0.5)
    assert 0 < len(kept) < 10 and (kept.scores >= 0.5).all() and len(kept.corners) == len(kept.names) == len(kept)
    assert np.isnan(boxes.velocity).all()


def test_points_in_front_project_exactly(front):
    points = np.random.default_rng(0).uniform([-5, 2, -2], [5, 50, 2], (40, 2, 3))
    pixels, visible = project_segments(points, front)
    ends = np.concatenate([points, np.ones((40, 2, 1))], axis=2) @ front.T
    assert visible.all()
    np.testing.assert_allclose(pixels, ends[..., :2] / ends[..., 2:3], rtol=1e-12)


def test_segments_are_cut_at_the_near_plane(front):
    segment = np.array([[[1., 10, 0], [1, -10, 0]], [[1, -10, 0], [1, 10, 0]], [[1, -1, 0], [2, -1, 0]]])
    pixels, visible = project_segments(segment, front)
    assert visible.tolist() == [True, True, False]
    ends = front[:3] @ [[1, 1], [10, NEAR], [0, 0], [1, 1]]
    np.testing.assert_allclose(pixels[0], (ends[:2] / ends[2]).T)  # the far end stays, the other lies on the plane
    np.testing.assert_allclose(pixels[1], pixels[0][::-1])
