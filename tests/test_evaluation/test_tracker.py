import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georope.evaluation import Tracker, track_results
from georope.evaluation.scenes import Frame, read_scenes
from georope.evaluation.tracker import TRACKING_NAMES


def box(x, y=0., name='car', score=.9, velocity=(0., 0.)) -> dict:
    return dict(translation=[x, y, 0.], size=[1., 1, 1], rotation=[1., 0, 0, 0], velocity=list(velocity),
                detection_name=name, detection_score=score, attribute_name='')


def ids(tracks) -> list:
    return [(track.id, track.age, track.active) for track in tracks]


def follow(tracker, frames, dt=.5) -> list:
    """Ids of the tracks seen in each frame, by the index of their detection in it."""
    tracker.reset()
    out = []
    for i, boxes in enumerate(frames):
        seen = {id(track.box): track.id for track in tracker.step(boxes, dt if i else 0.) if track.active}
        out.append([seen.get(id(one)) for one in boxes])
    return out


def run_fixture(golden_folder, run, **options):
    """Ids, ages, activity and scores, positions of every frame of the golden run, ours first."""
    content = json.loads((golden_folder / 'tracker.json').read_text())
    golden = np.load(golden_folder / 'tracker.npz')
    sequence, assignment, *rest = run.split('.')
    tracker = Tracker(assignment=assignment, max_age=0 if rest else content['max_age'],
                      score_threshold=content['score_threshold'], **options)
    for i, frame in enumerate(content['sequences'][sequence]):
        tracks = tracker.step(frame['detections'], frame['time_lag'])
        yield ([[int(track.id), track.age, track.active] for track in tracks],
               [[track.box['detection_score'], *track.xy] for track in tracks],
               golden[f'{run}.f{i}.id_age_active'], golden[f'{run}.f{i}.score_ct'],
               [track.box['detection_name'] for track in tracks],
               [track['name'] for track in content['results'][run][i]['tracks']])


@pytest.mark.parametrize('run', ['main.greedy', 'main.hungarian', 'one_empty_frame.greedy', 'one_empty_frame.hungarian',
                                 'main.greedy.max_age0'])
def test_compat_is_the_public_code_exactly(golden_folder, run):
    frames = list(run_fixture(golden_folder, run, compat=True))
    assert len(frames) >= 6
    for numbers, positions, golden_numbers, golden_positions, names, golden_names in frames:
        np.testing.assert_array_equal(np.array(numbers).reshape(-1, 3), golden_numbers)
        np.testing.assert_array_equal(np.array(positions).reshape(-1, 3), golden_positions)
        assert names == golden_names


def test_without_compat_only_unseen_tracks_differ(golden_folder):
    """Greedy, detections in order of score: the public code's one fault here is the time an unseen track moves by."""
    for numbers, positions, golden_numbers, golden_positions, *_ in run_fixture(golden_folder, 'main.greedy'):
        np.testing.assert_array_equal(numbers, golden_numbers)
        seen = golden_numbers[:, 2] > 0
        np.testing.assert_array_equal(np.array(positions)[seen], golden_positions[seen])
    for numbers, positions, golden_numbers, golden_positions, *_ in run_fixture(golden_folder, 'main.greedy.max_age0'):
        np.testing.assert_array_equal(numbers, golden_numbers)
        np.testing.assert_array_equal(positions, golden_positions)


@pytest.mark.parametrize('compat', [False, True])
def test_hungarian_keeps_a_track_it_cannot_pair(compat):
    """Quirk 17: paired with a box far away, the track of the public code is lost at once."""
    tracker = Tracker(assignment='hungarian', compat=compat)
    (_, ), (other, ), (again, ) = follow(tracker, [[box(0)], [box(50)], [box(0)]])
    assert other == '2' and again == ('3' if compat else '1')


@pytest.mark.parametrize('compat', [False, True])
def test_tracks_age_in_frames_without_detections(compat):
    """Quirk 18: four frames after its last detection only the public code finds a track again."""
    tracks = follow(Tracker(compat=compat), [[box(0)], [], [], [], [box(0)]])
    assert tracks[-1] == ['1' if compat else '2']
    assert follow(Tracker(compat=compat), [[box(0)], [], [], [box(0)]])[-1] == ['1']


@pytest.mark.parametrize('compat', [False, True])
def test_an_unseen_track_moves_by_the_time_that_passed(compat):
    """Quirk 19: the public code moves a track first seen at time 0 not at all."""
    tracker = Tracker(compat=compat)
    tracker.step([box(0, velocity=(10., 0))], 0.)
    track, = tracker.step([], .5)
    assert track.xy[0] == (0 if compat else 5) and track.active == 0
    assert [t.id for t in tracker.step([box(10, velocity=(10., 0))], .5)] == (['2', '1'] if compat else ['1'])


@pytest.mark.parametrize('compat', [False, True])
def test_coordinates_of_thousands_of_kilometres(compat):
    """In float32, 5 400 000 m has steps of half a metre: two pedestrians become one position."""
    north = 5_400_000.
    frames = [[box(north, .0, 'pedestrian'), box(north + .2, .0, 'pedestrian', .8)],
              [box(north + .2, .0, 'pedestrian'), box(north, .0, 'pedestrian', .8)]]
    assert follow(Tracker(compat=compat), frames)[1] == (['1', '2'] if compat else ['2', '1'])


def test_hungarian_finds_more_pairs_than_greedy():
    frames = [[box(0), box(2)], [box(1.1, score=.9), box(4.4, score=.8)]]
    assert follow(Tracker(), frames)[1] == ['2', '3']
    assert follow(Tracker(assignment='hungarian'), frames)[1] == ['1', '2']


def test_hungarian_weighs_distances_where_a_pair_is_impossible():
    """1e18 for impossible pairs drowns the metres: with it, 3.6 m is taken to be as near to 2.8 m as 3.5 m is."""
    frames = [[box(.5, score=.9), box(2.8, score=.8), box(900, score=.7)],
              [box(3.6, score=.9), box(500, score=.8), box(3.5, score=.7)]]
    assert follow(Tracker(assignment='hungarian'), frames)[1] == ['4', '5', '2']


def test_gates_by_class_score_cut_and_classes():
    frames = [[box(0), box(20, name='pedestrian'), box(40, name='barrier'), box(60, score=.2)],
              [box(2), box(22, name='pedestrian')]]
    assert follow(Tracker(), frames) == [['1', '2', None, None], ['1', '2']]
    assert follow(Tracker(gates=dict(pedestrian=1.5)), frames)[1] == ['1', '3']
    assert follow(Tracker(gates=1.5), frames)[1] == ['3', '4']
    assert follow(Tracker(score_threshold=.2), frames)[0] == ['1', '2', None, '3']
    same_place = [[box(0)], [box(0, name='truck')]]
    assert follow(Tracker(), same_place)[1] == ['2']  # another class


def test_velocity_and_time_bring_a_detection_back():
    frames = [[box(0)], [box(10, velocity=(20., 0))]]
    assert follow(Tracker(), frames, dt=.5)[1] == ['1'] and follow(Tracker(), frames, dt=.1)[1] == ['2']


def test_max_age_counts_frames():
    for age in range(5):
        for gap in range(1, 6):
            last = follow(Tracker(max_age=age), [[box(0)], *[[]] * (gap - 1), [box(0)]])[-1]
            assert last == (['1'] if gap <= max(age, 1) else ['2'])


@pytest.mark.parametrize('options, match', [
    (dict(gates=dict(barrier=2.)), r"gates for \['barrier'\]"), (dict(assignment='best'), "not 'best'"),
    (dict(gates=0.), 'gates > 0'), (dict(gates=dict(car=float('nan'))), 'gates > 0'),
    (dict(max_age=-1), 'max_age >= 0'), (dict(score_threshold=float('nan')), 'finite score_threshold')])
def test_unfit_options(options, match):
    with pytest.raises(ValueError, match=match):
        Tracker(**options)


@pytest.mark.parametrize('fault', [dict(score=float('nan')), dict(x=float('inf')), dict(velocity=(0., float('nan')))])
def test_what_is_not_finite_is_neither_dropped_nor_written(fault):
    """Below no score cut and within no gate, it would vanish or start a new track in each frame."""
    broken = box(**{'x': 0., **fault})
    with pytest.raises(ValueError, match="not finite: .*'sample_token': 'abc'"):
        Tracker().step([box(0), dict(broken, sample_token='abc')], 0.)


def test_equal_scores_the_nearest_first():
    """Ground truth, or a constant score: a far detection must not take the track of a near one."""
    for positions in ([-2, .1], [.1, -2]):
        assert follow(Tracker(), [[box(0)], [box(x) for x in positions]])[1][positions.index(.1)] == '1'


def test_boxes_in_one_place_in_any_order():
    """One query of a detector may give a position to two classes; ids must not depend on which comes first."""
    same = [box(0, name='truck'), box(0, name='car'), box(0, velocity=(1., 0)), box(0, velocity=(0., 1))]
    straight, turned = follow(Tracker(), [same]), follow(Tracker(), [same[::-1]])
    assert straight[0] == turned[0][::-1] == ['4', '1', '3', '2']


def test_time_must_not_run_backwards():
    with pytest.raises(ValueError, match='-0.5 s'):
        Tracker().step([], -.5)


position = st.floats(-8, 8, allow_nan=False).map(lambda value: round(value, 1))
boxes = st.lists(st.builds(box, position, position, st.sampled_from(TRACKING_NAMES[2:4]), st.sampled_from([.3, .5, .7]),
                           st.tuples(position, position)), max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.lists(boxes, min_size=2, max_size=5), st.sampled_from(['greedy', 'hungarian']), st.randoms())
def test_order_of_detections_does_not_matter_and_ids_are_unique(frames, assignment, random):
    def tracks(frames):
        tracker = Tracker(assignment=assignment)
        return [sorted((t.id, t.active, t.box['detection_name'], *t.box['translation']) for t in tracker.step(f, .5))
                for f in frames]
    straight = tracks(frames)
    for frame in straight:
        assert len({row[0] for row in frame}) == len(frame) and all(isinstance(row[0], str) for row in frame)
    assert tracks([random.sample(frame, len(frame)) for frame in frames]) == straight
    classes = {row[0]: row[2] for frame in straight for row in frame}
    assert all(classes[row[0]] == row[2] for frame in straight for row in frame)


def test_scenes_do_not_know_of_each_other():
    """Scene B has its own ids and starts at time 0, whatever scene A was: its first box is where A's second was."""
    scenes = dict(A=[Frame('a0', 0), Frame('a1', 500_000)],
                  B=[Frame('b0', 600_000), Frame('b1', 2_600_000), Frame('b2', 3_600_000)])
    frames = dict(a0=[box(0), box(30)], a1=[box(0), box(30)], b0=[box(30, velocity=(9., 0))],
                  b1=[box(48, velocity=(9., 0))], b2=[box(57, velocity=(9., 0)), box(80)])
    both = dict(track_results(frames.__getitem__, scenes, Tracker()))
    alone = dict(track_results(frames.__getitem__, dict(B=scenes['B']), Tracker()))
    assert all(both[token] == alone[token] for token in ('b0', 'b1', 'b2'))
    found = {token: [one['tracking_id'] for one in boxes] for token, boxes in both.items()}
    assert found == dict(a0=['A/1', 'A/2'], a1=['A/1', 'A/2'], b0=['B/1'], b1=['B/1'], b2=['B/1', 'B/2'])
    assert both['b1'][0] == dict(
        sample_token='b1', translation=[48, 0, 0], size=[1, 1, 1], rotation=[1, 0, 0, 0], velocity=[9, 0],
        tracking_id='B/1', tracking_name='car', tracking_score=.9)


@pytest.mark.parametrize('scene, sample, match', [
    (dict(token='B', name='drive'), {}, "scene.json: record A: name 'drive' is that of 2 records"),
    ({}, dict(scene_token='gone'), "sample.json: record b: scene_token 'gone' leads nowhere")])
def test_scenes_that_would_mix(tmp_path, scene, sample, match):
    """Two scenes of one name would be tracked as one."""
    (tmp_path / 'own').mkdir()
    scenes = [dict(token='A', name='drive'), dict(dict(token='B', name='walk'), **scene)]
    samples = [dict(token='a', scene_token='A', timestamp=1),
               dict(dict(token='b', scene_token='B', timestamp=0), **sample)]
    for name, records in (('scene', scenes), ('sample', samples)):
        (tmp_path / f'own/{name}.json').write_text(json.dumps(records))
    with pytest.raises(ValueError, match=match):
        read_scenes('own', str(tmp_path))


def test_unseen_tracks_are_not_written():
    frames = dict(a=[box(0)], b=[], c=[box(0)])
    scenes = dict(S=[Frame('a', 0), Frame('b', 500_000), Frame('c', 1_000_000)])
    found = dict(track_results(frames.__getitem__, scenes, Tracker()))
    assert [len(found[token]) for token in 'abc'] == [1, 0, 1] and found['c'][0]['tracking_id'] == 'S/1'
