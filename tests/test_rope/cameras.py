"""Random cameras for property tests: every augmentation that may end in ``lidar2img``."""
import math

import torch
from hypothesis import strategies as st


def rotation(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> torch.Tensor:
    def about(axis, angle):
        c, s = math.cos(angle), math.sin(angle)
        i, j = [(1, 2), (2, 0), (0, 1)][axis]
        matrix = torch.eye(3, dtype=torch.float64)
        matrix[i, i], matrix[i, j], matrix[j, i], matrix[j, j] = c, -s, s, c
        return matrix
    return about(2, yaw) @ about(1, pitch) @ about(0, roll)


def rigid(matrix: torch.Tensor, shift) -> torch.Tensor:
    out = torch.eye(4, dtype=torch.float64)
    out[:3, :3], out[:3, 3] = matrix, torch.as_tensor(shift, dtype=torch.float64)
    return out


def camera(yaw: float = 0.0, position=(0.0, 0.0, 0.0), fx: float = 560.0, fy: float = 560.0, cx: float = 352.0,
           cy: float = 128.0, skew: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> torch.Tensor:
    """lidar2img (4, 4), float64, of a camera that looks along +y of the LiDAR frame turned by ``yaw``."""
    lidar2cam_axes = torch.tensor([[1, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)  # x right, y down, z ahead
    lidar2cam = rigid(lidar2cam_axes @ rotation(-yaw, pitch, roll), (0, 0, 0)) @ rigid(
        torch.eye(3), [-p for p in position])
    cam2img = torch.eye(4, dtype=torch.float64)
    cam2img[:2, :3] = torch.tensor([[fx, skew, cx], [0, fy, cy]], dtype=torch.float64)
    return cam2img @ lidar2cam


def bev(angle: float, scale: float, shift) -> torch.Tensor:
    """BEV augmentation of points (4, 4): rotate, scale, translate."""
    return rigid(scale * rotation(angle), shift)


def rig(num: int = 6) -> torch.Tensor:
    """lidar2img (num, 4, 4) of cameras all around, every one a little different."""
    return torch.stack([camera(2 * math.pi * i / num, (0.3 * i, -0.2, -0.4), fx=540.0 + 9 * i) for i in range(num)])


finite = {'allow_nan': False, 'allow_infinity': False}
cameras = st.builds(
    camera, yaw=st.floats(-math.pi, math.pi, **finite), position=st.tuples(*[st.floats(-3, 3, **finite)] * 3),
    # a negative focal length is a flipped image, cx and cy outside the image are crops
    fx=st.floats(200, 1300).flatmap(lambda f: st.sampled_from([f, -f])), fy=st.floats(200, 1300),
    cx=st.floats(-200, 900), cy=st.floats(-200, 500), skew=st.floats(-20, 20),
    pitch=st.floats(-0.2, 0.2), roll=st.floats(-0.2, 0.2))
augmentations = st.builds(bev, st.floats(-math.pi, math.pi), st.floats(0.5, 2), st.tuples(*[st.floats(-5, 5)] * 3))
