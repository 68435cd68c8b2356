"""How objects move: a curved street, and objects that stand, follow a lane or walk straight ahead."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation


class Street:
    """A gently curved line, the middle of the ego lane; s = arc length (m), d = offset to the left (m).

    Its heading is a + b s + c sin(e s + f), its curvature at most about 0.012 / m: at 10 m/s a finite difference over
    0.5 s deviates from the velocity by less than 0.2 %.
    """

    STEP = 0.05

    def __init__(self, rng: np.random.Generator, start: float, end: float):
        self.start, self.end = start, end
        self._heading = (rng.uniform(-np.pi, np.pi), rng.uniform(-0.003, 0.003), rng.uniform(0.08, 0.2),
                         2 * np.pi / rng.uniform(140, 200), rng.uniform(0, 2 * np.pi))
        self._s = np.arange(start, end + self.STEP, self.STEP)
        angle = self.heading(self._s[:-1] + self.STEP / 2)
        steps = self.STEP * np.stack([np.cos(angle), np.sin(angle)], 1)
        self._xy = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, 0)])
        self._xy -= self._xy[np.searchsorted(self._s, 0.0)]  # the start of the drive is the local origin

    def heading(self, s):
        a, b, c, e, f = self._heading
        return a + b * s + c * np.sin(e * s + f)

    def point(self, s, d=0.0):
        """(x, y) in metres, shape (..., 2), at arc length ``s`` and offset ``d``."""
        s = np.asarray(s, dtype=float)
        if s.size and (s.min() < self._s[0] or s.max() > self._s[-1]):
            raise ValueError(f'arc length {s.min()} to {s.max()} m is off the street ({self.start} to {self.end} m)')
        angle = self.heading(s)
        xy = np.stack([np.interp(s, self._s, self._xy[:, 0]), np.interp(s, self._s, self._xy[:, 1])], -1)
        return xy + np.stack([-np.sin(angle), np.cos(angle)], -1) * np.asarray(d)[..., None]


@dataclass(frozen=True)
class Standing:
    """An object that does not move."""

    x: float
    y: float
    yaw: float

    def pose(self, time: float) -> tuple[float, float, float]:
        return self.x, self.y, self.yaw

    def velocity(self, time: float) -> np.ndarray:
        return np.zeros(2)


@dataclass(frozen=True)
class Walking:
    """Constant velocity along a straight line; (x, y) at time 0, speed in m/s."""

    x: float
    y: float
    yaw: float
    speed: float

    def pose(self, time: float) -> tuple[float, float, float]:
        step = self.speed * time
        return self.x + step * np.cos(self.yaw), self.y + step * np.sin(self.yaw), self.yaw

    def velocity(self, time: float) -> np.ndarray:
        return self.speed * np.array([np.cos(self.yaw), np.sin(self.yaw)])


@dataclass(frozen=True)
class Driving:
    """Along a lane of the street: s = s0 + speed * time at offset d; a negative speed drives the other way."""

    street: Street
    s0: float
    d: float
    speed: float

    def pose(self, time: float) -> tuple[float, float, float]:
        s = self.s0 + self.speed * time
        x, y = self.street.point(s, self.d)
        return float(x), float(y), float(self.street.heading(s)) + (np.pi if self.speed < 0 else 0.0)

    def velocity(self, time: float) -> np.ndarray:
        """Tangent of the lane, by differences over 0.2 s (the street is a polyline of 5 cm steps)."""
        before, after = self.pose(time - 0.1), self.pose(time + 0.1)
        return (np.array(after[:2]) - np.array(before[:2])) / 0.2


class EgoDrive:
    """The recording car: in the middle of its lane, at a speed that varies, with a little roll and pitch."""

    def __init__(self, rng: np.random.Generator):
        self.speed = rng.uniform(5.0, 9.0)  # m/s, mean
        self._swing = rng.uniform(0.3, 0.6)
        self._rate = 2 * np.pi / rng.uniform(8.0, 14.0)
        self._phase = rng.uniform(0, 2 * np.pi)
        self._tilt = rng.uniform(0, 2 * np.pi, 2)

    def arc_length(self, time):
        wave = np.sin(self._rate * time + self._phase) - np.sin(self._phase)
        return self.speed * (time + self._swing / self._rate * wave)

    def pose(self, street: Street, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Ego to local world: rotation (3, 3), translation (3,)."""
        s = self.arc_length(time)
        roll, pitch = np.radians(0.35) * np.sin(1.3 * time + self._tilt)
        rotation = Rotation.from_euler('ZYX', [float(street.heading(s)), pitch, roll]).as_matrix()
        return rotation, np.array([*street.point(s), 0.0])
