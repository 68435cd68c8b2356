"""A small rig of made-up cameras."""
import numpy as np

FOCAL, WIDTH, HEIGHT = 200., 320, 180


def camera(azimuth: float, height: float = 1.5) -> np.ndarray:
    """lidar2img of a level camera above the LiDAR; azimuth in radians from y (forward) to the left."""
    forward = np.array([-np.sin(azimuth), np.cos(azimuth), 0])
    right = np.array([np.cos(azimuth), np.sin(azimuth), 0])
    lidar2cam = np.eye(4)
    lidar2cam[:3, :3] = [right, [0, 0, -1], forward]
    lidar2cam[:3, 3] = [0, height, 0]
    cam2img = np.array([[FOCAL, 0, WIDTH / 2, 0], [0, FOCAL, HEIGHT / 2, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    return cam2img @ lidar2cam
