"""A tracker by detection: CenterPoint's, as StreamPETR uses it, without the faults listed under ``compat``."""
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from scipy.optimize import linear_sum_assignment

from georope.evaluation.scenes import Frame

TRACKING_NAMES = ('bicycle', 'bus', 'car', 'motorcycle', 'pedestrian', 'trailer', 'truck')
DEFAULT_GATE = 2.5  # m


class Track(NamedTuple):
    """An object at one frame."""

    id: str
    box: dict  # its last detection, as the devkit writes it
    xy: np.ndarray  # (2,) m, global frame; moves on while the object is unseen
    dt: float  # s, between the frame of the last detection and the one before
    age: int = 1  # frames since the last detection, plus one
    active: int = 1  # detections in a row; 0 while unseen


class Tracker:
    """Links detections of the same class that lie where a track should be.

    A detection of score ``score_threshold`` or more is moved back by ``velocity * dt`` and goes to the nearest free
    track of its class within the gate, the highest score first (of equal ones the nearest to a track), or all at once
    by the Hungarian method: as many pairs as possible, of least total distance. One without track starts one. A track
    without detection moves on by its own velocity and is found again up to ``max_age`` frames after its last
    detection. The result does not depend on the order of the detections.

    Args:
        gates: largest distance in the ground plane, in m: for all classes, or by class name (the others: 2.5 m).
        score_threshold: detections below it are left out. AMOTA depends on it: recall beyond it is not reached.
        max_age: frames, see above; 0 is the same as 1.
        assignment: 'greedy' or 'hungarian'.
        compat: reproduce the public code (StreamPETR's nusc_tracking): detections in the order given; positions
            compared in float32, whose steps are 0.1 mm at 1 km and half a metre at UTM coordinates; an unseen track
            moves by the time between its last detection and the frame before it, not by the time since; a track that
            the Hungarian method pairs beyond its gate is lost at once; a frame without usable detections keeps
            tracks that are too old.
    """

    def __init__(self, gates: Union[float, Mapping[str, float]] = DEFAULT_GATE, score_threshold: float = 0.25,
                 max_age: int = 3, assignment: str = 'greedy', compat: bool = False) -> None:
        by_class = gates if isinstance(gates, Mapping) else dict.fromkeys(TRACKING_NAMES, gates)
        unknown = sorted(set(by_class) - set(TRACKING_NAMES))
        if unknown:
            raise ValueError(f'tracking gates for {unknown}, which are none of {", ".join(TRACKING_NAMES)}')
        if assignment not in ('greedy', 'hungarian'):
            raise ValueError(f"tracking assignment must be 'greedy' or 'hungarian', not {assignment!r}")
        if not (max_age >= 0 and all(gate > 0 for gate in by_class.values()) and math.isfinite(score_threshold)):
            raise ValueError('tracking needs max_age >= 0, gates > 0 and a finite score_threshold, not '
                             f'{max_age}, {dict(by_class)} and {score_threshold}')
        self.gates = {name: by_class.get(name, DEFAULT_GATE) for name in TRACKING_NAMES}
        self.score_threshold, self.max_age = score_threshold, max_age
        self.assignment, self.compat = assignment, compat
        self.reset()

    def __str__(self) -> str:
        gates = ', '.join(f'{name} {gate:g} m' for name, gate in self.gates.items()) \
            if len(set(self.gates.values())) > 1 else f'{next(iter(self.gates.values())):g} m'
        return (f'{self.assignment} tracker{", compat" if self.compat else ""}, score cut {self.score_threshold:g}, '
                f'gate {gates}, age {self.max_age}')

    def reset(self) -> None:
        """Forget everything: the next frame is the first of its scene."""
        self.tracks: list[Track] = []
        self._count = 0

    def step(self, detections: Sequence[dict[str, Any]], dt: float) -> list[Track]:
        """Take one frame.

        Args:
            detections: boxes as the devkit writes them; classes that are not tracked are left out.
            dt: seconds since the frame before, 0 for the first of a scene.

        Returns:
            Tracks: those with a detection here (in its order), new ones, and unseen ones with ``active`` 0.

        Raises:
            ValueError: time runs backwards, or a score, position or velocity is not finite.
        """
        if not dt >= 0:
            raise ValueError(f'the frame comes {dt} s after the one before: frames must be in order of time')
        for box in detections:
            if not math.isfinite(box['detection_score'] + sum(box['translation']) + sum(box['velocity'])):
                raise ValueError(f'cannot track a detection whose score, position or velocity is not finite: {box}')
        usable = [box for box in detections
                  if box['detection_name'] in self.gates and box['detection_score'] >= self.score_threshold]
        if not self.compat:
            usable.sort(key=lambda box: (-box['detection_score'], *box['translation'], box['detection_name'],
                                         *box['velocity']))
        scores = np.array([box['detection_score'] for box in usable])
        pairs, lost, beyond_gate = self._match(self._distances(usable, dt), scores)

        found = [Track(self.tracks[j].id, usable[i], _xy(usable[i]), dt, active=self.tracks[j].active + 1)
                 for i, j in sorted(pairs.items())]
        alone = [i for i in range(len(usable)) if i not in pairs]
        if self.compat:
            alone.sort(key=lambda i: i in beyond_gate)
        for i in alone:
            self._count += 1
            found.append(Track(str(self._count), usable[i], _xy(usable[i]), dt))

        taken = {*pairs.values(), *lost}
        unseen = [track for j, track in enumerate(self.tracks) if j not in taken]
        moved = [self._move(track, dt) for track in unseen if track.age < self.max_age]
        if self.compat and not usable:
            self.tracks = [self._move(track, dt) if track.age < self.max_age else track for track in unseen]
        else:
            self.tracks = [*found, *moved]
        return [*found, *moved]

    def _move(self, track: Track, dt: float) -> Track:
        """The track one frame on, without a detection."""
        step = np.asarray(track.box['velocity'][:2]) * (track.dt if self.compat else dt)
        return track._replace(xy=track.xy + step, age=track.age + 1, active=0)

    def _distances(self, boxes: Sequence[dict], dt: float) -> np.ndarray:
        """(boxes, tracks) m, between where a box was and a track is; inf beyond the gate and between classes."""
        kind = np.float32 if self.compat else np.float64
        before = np.array([_xy(box) - np.asarray(box['velocity'][:2]) * dt for box in boxes], kind).reshape(-1, 1, 2)
        there = np.array([track.xy for track in self.tracks], kind).reshape(1, -1, 2)
        distances = np.sqrt(np.square(before - there).sum(-1))
        names = np.array([box['detection_name'] for box in boxes])[:, None]
        gates = np.array([self.gates[box['detection_name']] for box in boxes])[:, None]
        same = names == np.array([track.box['detection_name'] for track in self.tracks])[None]
        return np.where(same & (distances <= gates), distances, np.inf)

    def _match(self, distances: np.ndarray, scores: np.ndarray) -> tuple[dict, set, set]:
        """Pairs of box and track; in ``compat`` also the tracks that are lost and the boxes they were paired with."""
        pairs: dict[int, int] = {}
        if self.assignment == 'greedy' or not distances.size:
            nearest, free = distances.min(1, initial=np.inf), distances.copy()
            for i in range(len(scores)) if self.compat else np.lexsort((nearest, -scores)).tolist():
                if np.isfinite(free[i]).any():
                    pairs[i] = int(free[i].argmin())
                    free[:, pairs[i]] = np.inf
            return pairs, set(), set()
        possible = np.isfinite(distances)
        # Beyond every sum of distances, so that no pair is given up for shorter ones; yet not so far that these drown.
        far = 1e18 if self.compat else 1 + distances[possible].sum()
        rows, columns = linear_sum_assignment(np.where(possible, distances, far))
        pairs = {int(i): int(j) for i, j in zip(rows, columns) if possible[i, j]}
        if not self.compat:
            return pairs, set(), set()
        return pairs, {*columns.tolist()} - {*pairs.values()}, {*rows.tolist()} - {*pairs}


def _xy(box: dict) -> np.ndarray:
    return np.array(box['translation'][:2], dtype=np.float64)


def track_results(detections: Callable[[str], Sequence[dict]], scenes: Mapping[str, Sequence[Frame]],
                  tracker: Tracker) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Track scene by scene, from the past only.

    Args:
        detections: gives the detections of a sample token.
        scenes: the frames of each scene in order of time, by its name (``georope.evaluation.scenes``).
        tracker: is reset at each scene.

    Yields:
        Sample token and its tracked boxes, for ``write_results``. Ids are strings that begin with the scene's name:
        no two scenes share one, and they do not depend on other scenes. Unseen tracks are not written.
    """
    for name, frames in scenes.items():
        tracker.reset()
        for i, frame in enumerate(frames):
            dt = (frame.timestamp - frames[i - 1].timestamp) / 1e6 if i else 0.
            tracks = tracker.step(detections(frame.token), dt)
            yield frame.token, [_tracking_box(frame.token, f'{name}/{track.id}', track.box)
                                for track in tracks if track.active]


def _tracking_box(token: str, track_id: str, box: dict) -> dict[str, Any]:
    kept = {key: box[key] for key in ('translation', 'size', 'rotation', 'velocity')}
    return dict(sample_token=token, **kept, tracking_id=track_id, tracking_name=box['detection_name'],
                tracking_score=box['detection_score'])
