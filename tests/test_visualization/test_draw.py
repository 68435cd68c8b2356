import cv2
import numpy as np
import pytest
from made_up_rig import HEIGHT, WIDTH, camera

from georope.visualization import Boxes, draw_bev, draw_camera, draw_frame, save_image
from georope.visualization.boxes import EDGES
from georope.visualization.draw import BACKGROUND, COLOURS, FAINT, PANEL, TRUTH, class_colour


def boxes(centres, scores=None, name='car', yaw=0.5, velocity=(0, 0)) -> Boxes:
    count = len(centres)
    turn = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    return Boxes.build(centres, [[4, 2, 1.5]] * count, [turn] * count, [name] * count, [velocity] * count, scores)


def pixels(points, lidar2img) -> np.ndarray:
    ends = points @ lidar2img[:3, :3].T + lidar2img[:3, 3]
    return ends[..., :2] / ends[..., 2:]


def lit(image, point, colour, radius: int = 1) -> bool:
    """Whether nearly that colour is within a pixel or so."""
    u, v = np.floor(point).astype(int)
    part = image[max(v - radius, 0):v + radius + 1, max(u - radius, 0):u + radius + 1].astype(int)
    return bool((np.abs(part - colour).max(-1) < 60).any())


@pytest.mark.parametrize('truth', [False, True], ids=['prediction', 'truth'])
def test_corners_and_edges_are_drawn_where_they_project(blank, front, truth):
    """Corner pixels and, for predictions, the whole edges; and nothing further than a line's width from an edge."""
    box = boxes([[0.5, 9, 1.2]], None if truth else [0.9])
    image = draw_camera(blank, front, **{'ground_truth' if truth else 'predictions': box})
    colour = TRUTH if truth else COLOURS['car']
    assert blank.max() == 0  # the input is left alone
    for corner in pixels(box.corners[0], front):
        assert lit(image, corner, colour), corner
    away = np.full((HEIGHT, WIDTH), 255, np.uint8)
    for start, end in pixels(box.corners[0][EDGES], front):
        for share in () if truth else np.linspace(0, 1, 20):
            assert lit(image, start + share * (end - start), colour)
        cv2.line(away, np.round(start).astype(int).tolist(), np.round(end).astype(int).tolist(), 0, 5)
    if truth:
        assert image[away > 0].max() == 0


def test_box_across_the_near_plane_and_boxes_out_of_sight(blank, front):
    beside = draw_camera(blank, front, boxes([[1.5, 1, 0]], [.9], yaw=np.pi / 2))
    assert beside.max() > 0
    ends = boxes([[1.5, 1, 0]], yaw=np.pi / 2).corners[0]
    far = ends[ends[:, 1] > 1]
    seen = [p for p in pixels(far, front) if 0 <= p[0] < WIDTH and 0 <= p[1] < HEIGHT]
    assert seen and all(lit(beside, point, COLOURS['car']) for point in seen)
    for centre in ([0, -9, 1], [60, 9, 1], [0, 9, 60]):
        assert draw_camera(blank, front, boxes([centre], [.9])).max() == 0


def test_nearer_boxes_cover_farther_ones(blank, front):
    both = Boxes(*(np.concatenate(parts) for parts in zip(
        *[(b.corners, b.names, b.velocity, b.scores) for b in (
            boxes([[0, 8, 1.2]], [.9], 'car', 0), boxes([[0, 30, 1.2]], [.9], 'bus', 0))])))
    swapped = Boxes(both.corners[::-1], both.names[::-1], both.velocity[::-1], both.scores[::-1])
    np.testing.assert_array_equal(draw_camera(blank, front, both), draw_camera(blank, front, swapped))


def test_bev_places_boxes_to_scale():
    """x to the right, y upward, 100 m over 1000 pixels."""
    box = boxes([[20, 30, 0]], [.9], yaw=0, velocity=(0, 10))
    image = draw_bev(1000, box, bev_range=50)
    for x, y in ((18, 29), (22, 29), (22, 31), (18, 31)):  # the corners
        assert lit(image, (500 + 10 * x, 500 - 10 * y), COLOURS['car'])
    assert lit(image, (500 + 10 * 22, 500 - 10 * 40), COLOURS['car'], 2)  # the arrow's tip: front + 1 s of motion
    assert not lit(image, (500 + 10 * 20, 500 + 10 * 30), COLOURS['car'], 20)  # not mirrored
    np.testing.assert_array_equal(image[5, 5], PANEL)


def test_bev_draws_truth_and_unknown_velocity():
    box = boxes([[20, 30, 0]], yaw=0, velocity=(np.nan, np.nan))
    image = draw_bev(1000, ground_truth=box, bev_range=50)
    assert all(lit(image, (500 + 10 * x, 500 - 10 * y), TRUTH) for x, y in ((18, 29), (22, 29), (22, 31), (18, 31)))


@pytest.mark.parametrize('count', [1, 2, 3, 6, 7])
def test_frame_with_any_number_of_cameras(count):
    rig = np.stack([camera(angle) for angle in np.linspace(0, 2 * np.pi, count, endpoint=False)])
    images = [np.full((HEIGHT, WIDTH, 3), 40 + 30 * i, np.uint8) for i in range(count)]
    picture = draw_frame(images, rig, cell_width=WIDTH)
    for i in range(count):  # each image is there, unscaled
        assert (picture == 40 + 30 * i).all(-1).sum() > 0.9 * HEIGHT * WIDTH
    assert picture.dtype == np.uint8


def test_headline_names_all_classes_beside_one_camera(front):
    """Ten classes, half of the usual width: the last one is there, and nothing is cut off."""
    parts = [boxes([[x, 30, 0]], [.9], name) for x, name in enumerate(COLOURS)]
    every = Boxes(np.concatenate([box.corners for box in parts]), list(COLOURS), np.zeros((10, 2)), np.ones(10))
    head = draw_frame([np.zeros((HEIGHT, WIDTH, 3), np.uint8)], front[None], every, every)[:64]
    assert head.shape[1] < 1300 and (head[:, -12:] == BACKGROUND).all()
    for colour in COLOURS.values():
        assert (head == colour).all(-1).sum() > 30


def test_range_labels_give_way_to_track_ids():
    label = np.array([300 + 600 / 110 * 10 * np.sin(.5), 300 + 600 / 110 * 10 * np.cos(.5)])  # of 10 m
    x, y = (label - 300) * (110 / 600, -110 / 600)
    box = boxes([[x - 3, y, 0]], [.9], yaw=0)

    def lettering(image):
        u, v = label.round().astype(int)
        return (image[v - 6:v + 7, u - 16:u + 17] == FAINT).all(-1).sum()

    free = lettering(draw_bev(600))
    box.ids = ['s/12']
    assert free > 10 and lettering(draw_bev(600, box)) == 0


def test_frame_draws_scaled_images_exactly_and_in_natural_places():
    names = ['CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK', 'CAM_BACK_LEFT', 'CAM_BACK_RIGHT']
    angles = np.radians([0, -60, 60, 180, 120, -120])
    rig = np.stack([camera(angle) for angle in angles])
    images = [np.full((HEIGHT, WIDTH, 3), 20 * i + 20, np.uint8) for i in range(6)]
    box = boxes([[0.5, 9, 1.2]], [.9])
    half = WIDTH // 2
    picture = draw_frame(images, rig, box, None, names, cell_width=half)
    columns = [np.flatnonzero((picture == 20 * i + 20).all(-1).any(0)) for i in range(6)]
    rows = [np.flatnonzero((picture == 20 * i + 20).all(-1).any(1)) for i in range(6)]
    left = [c.min() for c in columns]
    top = [r.min() for r in rows]
    assert left[2] < left[0] < left[1] and left[4] < left[3] < left[5]  # left, middle, right
    assert top[0] == top[1] == top[2] < top[3] == top[4] == top[5]
    for corner in pixels(box.corners[0], rig[0]) / 2:
        assert lit(picture, corner + (left[0], top[0]), COLOURS['car'])


def test_frame_of_images_of_different_sizes():
    images = [np.full((HEIGHT, WIDTH, 3), 60, np.uint8), np.full((WIDTH, HEIGHT, 3), 90, np.uint8)]
    picture = draw_frame(images, np.stack([camera(0), camera(1)]), cell_width=WIDTH)
    tall = np.argwhere((picture == 90).all(-1))
    height, width = tall.max(0) - tall.min(0) + 1
    assert height == HEIGHT and width == round(HEIGHT * HEIGHT / WIDTH)  # scaled as a whole


def test_frame_refuses_what_does_not_fit(blank, front):
    with pytest.raises(ValueError, match='at least one image'):
        draw_frame([], np.zeros((0, 4, 4)))
    with pytest.raises(ValueError, match='2 images, 1 matrices'):
        draw_frame([blank, blank], front[None])


def test_colours_do_not_depend_on_other_classes():
    assert class_colour('tram') == class_colour('tram') and len(set(COLOURS.values())) == 10


def test_saved_picture_reads_back(tmp_path, blank):
    path = tmp_path / 'new' / 'a.png'
    save_image(str(path), blank + 7)
    assert (cv2.imread(str(path)) == 7).all() and list(path.parent.iterdir()) == [path]
