"""One scene: the street, what stands around it, the ego car's drive, its sensors and its clock."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ground import Ground
from .motion import EgoDrive, Standing, Street
from .options import ToyOptions
from .placement import REACH, Placement, ToyObject, make_object
from .rig import Sensor, build_rig
from .shapes import Mesh, block_mesh, colour, tree_mesh

_START_TIME = 1_533_151_603_000_000  # microseconds, 1 August 2018
_MARGIN, _TOP_SPEED = 120.0, 10.0    # m, m/s: the street goes on this far, and as far as the traffic comes and goes
_ORIGINS = (250.0, 650.0)            # m: local origins on the map
_FAR_ORIGIN = np.array([500_000.0, 5_400_000.0])


@dataclass(frozen=True)
class Block:
    """Something that is not annotated: house, tree, pole, garage. It hides what is behind it."""

    mesh: Mesh                # in the local world
    box: tuple[float, ...]    # centre x, y, z, width, length, height (m) and yaw in the local world

    @classmethod
    def at(cls, mesh: Mesh, size: tuple[float, float, float], street: Street, s: float, d: float, turn: float = 0.0):
        """Stretch a unit mesh to ``size`` = (width, length, height) and put it beside the street."""
        (x, y), yaw = street.point(s, d), float(street.heading(s)) + turn
        width, length, height = size
        return cls(mesh.scaled(length, width, height).posed(x, y, 0.0, yaw),
                   (float(x), float(y), height / 2, *size, yaw))


@dataclass(frozen=True)
class Scene:
    """A scene in its own local world (metres, z up, ground z = 0); ``origin`` moves it to map coordinates.

    ``timestamps`` are those of the key frames' LiDAR in integer microseconds; simulated time counts in seconds from
    the first one.
    """

    name: str
    origin: np.ndarray
    timestamps: tuple[int, ...]
    rig: tuple[Sensor, ...]
    street: Street
    drive: EgoDrive
    objects: tuple[ToyObject, ...]
    blocks: tuple[Block, ...]
    ground: Ground
    empty_frames: tuple[int, ...]

    def time(self, timestamp: int) -> float:
        return (timestamp - self.timestamps[0]) * 1e-6

    def ego_pose(self, timestamp: int) -> tuple[np.ndarray, np.ndarray]:
        """Ego to local world: rotation (3, 3), translation (3,)."""
        return self.drive.pose(self.street, self.time(timestamp))

    def present(self, frame: int, timestamp: int) -> list[ToyObject]:
        """Objects that exist in key frame ``frame`` as seen by a sensor that fires at ``timestamp``, within reach."""
        if frame in self.empty_frames:
            return []
        ego = self.ego_pose(self.timestamps[frame])[1]
        lidar_time = self.time(self.timestamps[frame])
        return [o for o in self.objects if lidar_time <= o.last_seen
                and np.linalg.norm(o.centre(lidar_time)[:2] - ego[:2]) < REACH]


def build_scene(options: ToyOptions, name: str) -> Scene:
    """The scene ``name`` of a set. It depends on the seed, its name and the options, not on the other scenes."""
    number = int(name.split('-')[1])
    rng = np.random.default_rng([options.seed, number])
    stamps = _timestamps(rng, options, name, number)
    times = (np.array(stamps) - stamps[0]) * 1e-6
    drive = EgoDrive(rng)
    travel = float(drive.arc_length(times[-1]))
    reserve = _MARGIN + _TOP_SPEED * times[-1]
    street = Street(rng, -reserve, travel + reserve)
    far = 'far_origin' in options.edge_cases
    origin = np.array([*(_FAR_ORIGIN if far else 0) + rng.uniform(*_ORIGINS, 2), 0.0])
    placement = Placement(rng, street, drive, np.arange(0, times[-1] + 0.25, 0.25))
    blocks = _surroundings(rng, street, travel)
    if 'zero_points' in options.edge_cases:
        blocks.append(_garage(rng, placement, street))
    if 'single_observation' in options.edge_cases:
        _add_visitor(rng, placement, street)
    for block in blocks:
        x, y, _, width, length, _, yaw = block.box
        placement.reserve((width, length), np.array([[x, y, yaw]]))
    placement.fill()
    empty = (1,) if 'empty_frame' in options.edge_cases and len(stamps) > 1 else ()
    return Scene(name, origin, stamps, build_rig(rng, options.num_cameras, options.image_size), street, drive,
                 tuple(placement.objects), tuple(blocks), Ground(rng, street, travel), empty)


def _timestamps(rng, options, name, number) -> tuple[int, ...]:
    steps = 500_000 + rng.integers(-3000, 3000, options.num_samples(name) - 1)
    if 'time_gap' in options.edge_cases and len(steps):
        steps[-1] += 1_500_000
    start = _START_TIME + 86_400_000_000 * (number % 97) + int(rng.integers(0, 1_000_000))
    return tuple(int(t) for t in start + np.concatenate([[0], np.cumsum(steps)]))


def _garage(rng, placement, street) -> Block:
    """A closed garage with a car inside, 16 m beside the street: annotated, but no ray ever meets the car."""
    x, y = street.point(12.0, 16.0)
    yaw = float(street.heading(12.0))
    if not placement.add(make_object(rng, 'hidden-car', 'car', Standing(float(x), float(y), yaw))):
        raise RuntimeError('no room for the garage of edge case zero_points')
    return Block.at(block_mesh((150, 160, 170)), (3.4, 6.6, 2.9), street, 12.0, 16.0)


def _add_visitor(rng, placement, street):
    """A pedestrian 9 m ahead on the right who is there in the first frame only."""
    x, y = street.point(9.0, -7.0)
    visitor = make_object(rng, 'visitor', 'pedestrian', Standing(float(x), float(y), float(street.heading(9.0))),
                          last_seen=0.1)
    if not placement.add(visitor):
        raise RuntimeError('no room for the pedestrian of edge case single_observation')
    start = street.point(0.0)
    direction = np.array([x, y]) - start
    sight = start + 0.55 * direction  # nothing may stand between the two
    placement.reserve((1.0, 0.8 * np.linalg.norm(direction)),
                      np.array([[*sight, np.arctan2(direction[1], direction[0])]]))


def _surroundings(rng, street, travel) -> list[Block]:
    """Houses behind the plazas; trees and lamp posts along the walks."""
    blocks = []

    for side in (-1, 1):
        s = -REACH - 30
        while s < travel + REACH + 30:
            length, depth, height = rng.uniform(10, 24), rng.uniform(8, 12), rng.uniform(5, 16)
            wall = colour(rng.uniform(10, 60), rng.uniform(0.05, 0.22), rng.uniform(0.55, 0.85))
            blocks.append(Block.at(block_mesh(wall, storeys=True), (depth, length, height), street, s + length / 2,
                                   side * (39 + depth / 2 + rng.uniform(0, 5))))
            s += length + rng.uniform(1, 14)
        for s in np.arange(-REACH, travel + REACH, 17):
            offset = -9.0 if side < 0 else 12.6
            if rng.random() < 0.5:
                crown, height = rng.uniform(1.8, 3.0), rng.uniform(4.5, 7)
                leaves = colour(rng.uniform(75, 100), rng.uniform(.35, .55), rng.uniform(.3, .45))
                blocks.append(Block.at(tree_mesh(leaves), (crown, crown, height), street, s + rng.uniform(-3, 3),
                                       offset, rng.uniform(0, 1.5)))
            else:
                blocks.append(Block.at(block_mesh((95, 95, 95)), (0.16, 0.16, rng.uniform(5, 7)), street,
                                       s + rng.uniform(-3, 3), offset))
    return blocks
