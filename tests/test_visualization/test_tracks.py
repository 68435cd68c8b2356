"""Tracks in pictures: ids, colours, and tails through frames of a moving car."""
import numpy as np
import pytest
from made_up_rig import HEIGHT, WIDTH, camera

from georope.visualization import Boxes, draw_bev, draw_camera
from georope.visualization.draw import track_colour
from georope.visualization.info import lidar2global, tails
from georope.visualization.strokes import Stroke


def entry(number: int) -> dict:
    """The car drives 2 m along global x in each frame, facing it: LiDAR y is global x."""
    pose = np.array([[0, 1, 0, 100 + 2. * number], [-1, 0, 0, 50], [0, 0, 1, 1], [0, 0, 0, 1]])
    return dict(token=f't{number}', ego2global=pose.tolist())


def box(number: int, track: str, x: float, **changes) -> dict:
    return dict(dict(sample_token=f't{number}', translation=[x, 45., 1], size=[2., 4, 1.5], rotation=[1., 0, 0, 0],
                     velocity=[0., 0], tracking_id=track, tracking_name='car', tracking_score=.9), **changes)


RESULTS = {f't{i}': [box(i, 's/1', 120), box(i, 's/2', 110 + 4 * i), box(i, 's/3', 130, tracking_score=.1)][:1 + i]
           for i in range(3)}


def test_tails_lie_in_the_frame_of_now_on_the_ground():
    """A parked car's tail is a point; one that drives as fast again as we do goes back 2 m a frame."""
    strokes = tails(entry(2), [entry(0), entry(1)], RESULTS, .25)
    lines = {stroke.colour: stroke.points for stroke in strokes if len(stroke.points) > 1}
    assert lines.keys() == {track_colour('s/1'), track_colour('s/2')}  # the third is below the threshold
    np.testing.assert_allclose(lines[track_colour('s/1')], [[5, 16, -.75]] * 3)  # x right, y forward
    np.testing.assert_allclose(lines[track_colour('s/2')], [[5, 10, -.75], [5, 14, -.75]])  # since its first frame
    dots = [stroke.points[0] for stroke in strokes if len(stroke.points) == 1]
    np.testing.assert_allclose(dots, [[5, 16, -.75], [5, 16, -.75], [5, 10, -.75]])  # not where they are now


def test_detections_have_no_tails_and_missing_frames_are_named():
    detection = dict(box(0, '', 120), detection_name='car', detection_score=.9)
    del detection['tracking_id']
    assert tails(entry(0), [], {'t0': [detection]}, .25) == []
    with pytest.raises(KeyError, match='no sample t1'):
        tails(entry(2), [entry(1)], {'t2': RESULTS['t2']}, .25)


def test_tracking_boxes_are_read_like_detections():
    boxes = Boxes.from_results(RESULTS['t2'], lidar2global(entry(2)))
    assert boxes.ids == ['s/1', 's/2', 's/3'] and boxes.names == ['car'] * 3 and boxes.scores.tolist() == [.9, .9, .1]
    assert boxes.above(.25).ids == ['s/1', 's/2']
    np.testing.assert_allclose(boxes.corners[0].mean(0), [5, 16, 0])
    broken = box(2, 's/1', 120)
    del broken['tracking_name']
    with pytest.raises(ValueError, match='box 1 of sample t2 has no tracking_name'):
        Boxes.from_results([box(2, 's/0', 1), broken], np.eye(4))


def test_colours_of_tracks_are_bright_and_those_in_a_row_differ():
    colours = np.array([track_colour(f'scene-0001/{i}') for i in range(300)])
    assert (colours @ [.114, .587, .299]).min() > 60  # BGR: they show on dark
    assert np.abs(np.diff(colours, axis=0)).sum(1).min() > 100
    assert track_colour('scene-0002/7') == track_colour('7') and track_colour('a' * 32) != track_colour('b' * 32)


def test_tracks_are_drawn_in_their_colour_with_id(front, blank):
    one = Boxes.build([[0, 9, 1]], [[4, 2, 2]], [np.eye(3)], ['car'], [[0, 0]], [.9])
    pictures = []
    for track in ('s/7', 's/8'):
        one.ids = [track]
        drawn = draw_camera(blank, front, one), draw_bev(600, one)
        for image in drawn:
            assert (image == track_colour(track)).all(-1).sum() > 20
        pictures.append(drawn[1])
    plain = Boxes(one.corners, one.names, one.velocity, one.scores)
    changed = np.argwhere((pictures[0] != draw_bev(600, plain)).any(-1))
    assert changed[:, 1].max() > 300 + 600 / 110 * 2 + 8  # the id stands to the right of the box


def test_strokes_are_drawn_where_they_project(front):
    """A line that passes behind the camera ends at the image's edge; a dot behind it does not appear."""
    colour, image = (10, 200, 30), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    line = draw_camera(image, front, strokes=[Stroke(np.array([[1, 10, 0], [1, -10, 0]]), colour, 3)])
    u, v = WIDTH / 2 + 200 * .1, HEIGHT / 2 + 200 * .15
    assert (line[round(v), round(u)] == colour).all() and (line == colour).all(-1)[-1].any()
    assert draw_camera(image, camera(np.pi), strokes=[Stroke(np.array([[1, 10, 0]]), colour, 9)]).max() == 0
