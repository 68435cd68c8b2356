"""The sensor rig: six cameras and a LiDAR as on a nuScenes car, a little different on every vehicle (log)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

# Axes of camera (right, down, forward) and LiDAR (right, forward, up) as columns in the ego frame (forward, left, up).
_CAMERA_AXES = np.array([[0., 0., 1.], [-1., 0., 0.], [0., -1., 0.]])
_LIDAR_AXES = np.array([[0., 1., 0.], [-1., 0., 0.], [0., 0., 1.]])

# channel: yaw in the ego frame (degrees), position (m), focal length at 1600 px, firing time after the LiDAR's (ms).
_CAMERAS = {
    'CAM_FRONT': (0, (1.70, 0.00, 1.51), 1266, -35),
    'CAM_FRONT_RIGHT': (-55, (1.55, -0.49, 1.50), 1260, -27),
    'CAM_FRONT_LEFT': (55, (1.52, 0.49, 1.51), 1272, -43),
    'CAM_BACK': (180, (0.03, 0.00, 1.57), 809, -10),
    'CAM_BACK_LEFT': (109, (1.04, 0.48, 1.56), 1257, -1),
    'CAM_BACK_RIGHT': (-110, (1.01, -0.48, 1.56), 1259, -20),
    'CAM_EXTRA_0': (27, (1.60, 0.30, 1.62), 1000, -39),
    'CAM_EXTRA_1': (-27, (1.60, -0.30, 1.62), 1000, -31),
    'CAM_EXTRA_2': (82, (1.20, 0.50, 1.62), 1000, -47),
    'CAM_EXTRA_3': (-82, (1.20, -0.50, 1.62), 1000, -23),
    'CAM_EXTRA_4': (145, (0.50, 0.45, 1.62), 1000, -5),
    'CAM_EXTRA_5': (-145, (0.50, -0.45, 1.62), 1000, -15),
}
CAMERA_CHANNELS = tuple(_CAMERAS)
LIDAR_CHANNEL = 'LIDAR_TOP'


@dataclass(frozen=True)
class Sensor:
    """A calibrated sensor.

    Attributes:
        rotation, translation: sensor to ego, (3, 3) and (3,) in metres; ego x forward, y left, z up.
        intrinsic: (3, 3) in pixels, or None for the LiDAR. Pixel (row, column) covers [column, column + 1) x
            [row, row + 1): its centre projects to column + 0.5, row + 0.5.
        delay: firing time relative to the key frame's LiDAR time, microseconds.
    """

    channel: str
    rotation: np.ndarray
    translation: np.ndarray
    intrinsic: np.ndarray | None
    delay: int


def build_rig(rng: np.random.Generator, num_cameras: int, image_size: tuple[int, int]) -> tuple[Sensor, ...]:
    """The LiDAR, then ``num_cameras`` cameras in the fixed order of ``CAMERA_CHANNELS``.

    The field of view stays that of a 1600 x 900 image at any ``image_size`` (height, width): fx scales with the
    width, fy with the height.
    """
    scale = np.array([image_size[1] / 1600, image_size[0] / 900, 1.0])
    tilt = Rotation.from_euler('ZYX', rng.normal(0, [0.4, 0.5, 0.5]), degrees=True).as_matrix()
    position = np.array([0.95, 0.0, 1.84]) + rng.uniform(-0.03, 0.03, 3)
    sensors = [Sensor(LIDAR_CHANNEL, tilt @ _LIDAR_AXES, position, None, 0)]
    for channel in CAMERA_CHANNELS[:num_cameras]:
        yaw, position, focal, delay = _CAMERAS[channel]
        angles = np.array([yaw, 0.0, 0.0]) + rng.uniform(-1, 1, 3) * [1.5, 0.8, 0.6]
        rotation = Rotation.from_euler('ZYX', angles, degrees=True).as_matrix() @ _CAMERA_AXES
        focal = focal * rng.uniform(0.985, 1.015)
        centre = np.array([816.0, 491.0] if yaw == 0 else [816.0, 475.0]) + rng.uniform(-14, 14, 2)
        intrinsic = np.array([[focal, 0.0, centre[0]], [0.0, focal, centre[1]], [0.0, 0.0, 1.0]]) * scale[:, None]
        sensors.append(Sensor(channel, rotation, np.array(position) + rng.uniform(-0.03, 0.03, 3), intrinsic,
                              1000 * delay + int(rng.integers(-400, 400))))
    return tuple(sensors)
