"""Puts the objects of a scene on, beside and around the street so that they never run into each other."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .catalog import CLASSES, ClassSpec
from .motion import Driving, EgoDrive, Standing, Street, Walking
from .shapes import Mesh, colour, object_mesh

GROUND_GAP = 0.03  # m between ground and box: ground returns of the LiDAR are never inside a box
REACH = 55.0       # m: the street is filled, and objects are annotated, this far from the ego car

# Zones: offset to the left of the ego lane's middle, m (range drawn from).
_OFFSETS = dict(lane=(0., 0.), oncoming=(3.5, 3.5), park_right=(-3.7, -3.6), park_left=(7.1, 7.2),
                curb_right=(-5.9, -5.6), curb_left=(9.1, 9.4), walk_right=(-8.0, -6.6), walk_left=(10.1, 11.5),
                bike_right=(-1.62, -1.62), bike_left=(5.1, 5.1), near_right=(-14., -9.5), near_left=(13., 18.),
                far_right=(-24., -14.), far_left=(17., 26.))
_BIKE_SPEED = 4.0
_FREE_AHEAD = 11.0  # m of the ego lane before and behind the ego car that stay free


@dataclass(frozen=True)
class ToyObject:
    """One annotated thing.

    Attributes:
        key: unique inside the scene.
        name: detection class; ``spec`` its catalogue entry.
        size: width, length, height, metres (nuScenes' order).
        attribute: nuScenes attribute name, or '' for barriers and cones.
        mesh: scaled to the size, in the object's own frame, on the ground of its box.
        last_seen: it exists until this time (s since scene start).
    """

    key: str
    name: str
    size: tuple[float, float, float]
    motion: Standing | Walking | Driving
    attribute: str
    mesh: Mesh = field(repr=False, compare=False)
    last_seen: float = float('inf')

    @property
    def spec(self) -> ClassSpec:
        return CLASSES[self.name]

    def centre(self, time: float) -> np.ndarray:
        """Box centre (x, y, z) in the local world, metres."""
        x, y, _ = self.motion.pose(time)
        return np.array([x, y, GROUND_GAP + self.size[2] / 2])

    def posed_mesh(self, time: float) -> Mesh:
        x, y, yaw = self.motion.pose(time)
        return self.mesh.posed(x, y, GROUND_GAP, yaw)


def make_object(rng: np.random.Generator, key: str, name: str, motion, last_seen: float = float('inf')) -> ToyObject:
    """An instance of class ``name`` with its own size, colours and the attribute its motion implies."""
    spec = CLASSES[name]
    moving = not isinstance(motion, Standing)
    width, length, height = np.array(spec.size) * np.clip(rng.normal(1, 0.05, 3), 0.88, 1.12)
    stopped = spec.kind == 'vehicle' and not moving and rng.random() < 0.2
    attribute = {
        'vehicle': 'vehicle.moving' if moving else 'vehicle.stopped' if stopped else 'vehicle.parked',
        'cycle': 'cycle.with_rider' if moving else 'cycle.without_rider',
        'pedestrian': 'pedestrian.moving' if moving else 'pedestrian.standing',
        'static': '',
    }[spec.kind]
    hue, vivid, light = rng.normal(0, 7), rng.uniform(0.85, 1.05), rng.uniform(0.8, 1.05)
    main, other = (colour(h + hue, min(1, s * vivid), min(1, v * light)) for h, s, v in (spec.main, spec.other))
    mesh = object_mesh(name, main, other, braking=stopped, rider=spec.kind == 'cycle' and moving)
    return ToyObject(key, name, (float(width), float(length), float(height)), motion, attribute,
                     mesh.scaled(length, width, height), last_seen)


def _discs(size, poses, margin):
    """Discs that cover a box at each of (T, 3) poses: centres (T, 5, 2) and their radius, metres."""
    width, length = size[:2]
    short, long = min(width, length), max(width, length)
    along = np.linspace(-1, 1, 5) * (long - short) / 2
    yaw = poses[:, 2] + (0 if length >= width else np.pi / 2)
    direction = np.stack([np.cos(yaw), np.sin(yaw)], -1)
    return poses[:, None, :2] + along[:, None] * direction[:, None], short / 2 * 1.15 + margin


class Placement:
    """Accepts objects one by one; refuses those that would touch another or the ego car at any of ``times``."""

    def __init__(self, rng: np.random.Generator, street: Street, drive: EgoDrive, times: np.ndarray):
        self.rng, self.street, self.drive, self.times = rng, street, drive, times
        self.objects: list[ToyObject] = []
        self._centres, self._radii = [], []
        self.reserve((2.2, 4.8), np.array([[*street.point(s), street.heading(s)] for s in drive.arc_length(times)]))
        self._oncoming_speed = rng.uniform(5, 9)

    def reserve(self, size, poses: np.ndarray):
        """Keep objects out of a (width, length) area at (T, 3) or (1, 3) poses x, y, yaw."""
        centres, radius = _discs(size, poses, 0.15)
        self._centres.append(centres)
        self._radii.append(radius)

    def fill(self):
        """Objects of every class along the whole drive, three of each within the devkit's range at its middle first."""
        travel = float(self.drive.arc_length(self.times[-1]))
        middle = self.times[len(self.times) // 2]
        for spec in CLASSES.values():
            for _ in range(3):
                self._try(spec, middle, 0.6 * spec.reach)
        for spec in CLASSES.values():
            for _ in range(round(spec.per_100m * (travel + 2 * REACH) / 100) - 3):
                self._try(spec, self.rng.choice(self.times), REACH)

    def _try(self, spec: ClassSpec, time: float, reach: float):
        """One object that is at most ``reach`` m along the street from the ego car at ``time``, if there is room."""
        for _ in range(20):
            zone = spec.zones[self.rng.integers(len(spec.zones))]
            s = self.drive.arc_length(time) + self.rng.uniform(-reach, reach)
            motion = self._motion(zone, spec, time, s)
            if zone == 'lane' and self._crowds_ego(motion, spec.size[1]):
                continue
            if self.add(make_object(self.rng, f'{spec.name}-{len(self.objects)}', spec.name, motion)):
                return

    def _crowds_ego(self, motion: Driving, length: float) -> bool:
        gap = motion.s0 + motion.speed * self.times - self.drive.arc_length(self.times)
        return bool((np.abs(gap) < _FREE_AHEAD + length / 2).any())

    def add(self, obj: ToyObject) -> bool:
        """Keep the object if there is room for it; says whether."""
        poses = np.array([obj.motion.pose(t) for t in self.times])
        centres, radius = _discs(obj.size, poses, 0.1)
        for others, other_radius in zip(self._centres, self._radii):
            gap = np.linalg.norm(centres[:, :, None] - others[:, None], axis=-1).min()
            if gap < radius + other_radius:
                return False
        self.objects.append(obj)
        self._centres.append(centres)
        self._radii.append(radius)
        return True

    def _motion(self, zone: str, spec: ClassSpec, time: float, s: float):
        """A motion that fits the zone and passes arc length ``s`` at ``time``."""
        rng, street = self.rng, self.street
        d = rng.uniform(*_OFFSETS[zone])
        if zone in ('lane', 'oncoming', 'bike_right', 'bike_left'):
            speed = dict(lane=self.drive.speed, oncoming=-self._oncoming_speed, bike_right=_BIKE_SPEED,
                         bike_left=-_BIKE_SPEED)[zone]
            return Driving(street, s - speed * time, d, speed)
        x, y = street.point(s, d)
        along = float(street.heading(s)) + (np.pi if rng.random() < 0.5 else 0.0)
        if spec.kind == 'pedestrian' and rng.random() < 0.65:
            yaw = along + rng.normal(0, 0.05) if zone.startswith('walk') else rng.uniform(-np.pi, np.pi)
            speed = rng.uniform(0.8, 1.6)
            return Walking(x - speed * time * np.cos(yaw), y - speed * time * np.sin(yaw), yaw, speed)
        if zone.startswith(('near', 'far')) or spec.kind == 'pedestrian':
            return Standing(x, y, rng.uniform(-np.pi, np.pi))
        if zone.startswith('curb'):  # barriers stand with their long side along the kerb
            along += np.pi / 2
        return Standing(x, y, along + rng.normal(0, 0.06))
