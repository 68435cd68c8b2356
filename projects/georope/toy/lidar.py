"""A small 32-beam LiDAR: rays that hit the boxes of all objects, or the ground."""
from __future__ import annotations

import numpy as np

BEAMS, COLUMNS = 32, 360
_ELEVATION = np.radians(np.linspace(-30.67, 10.67, BEAMS))
_AZIMUTH = np.radians((np.arange(COLUMNS) + 0.5) * 360 / COLUMNS)  # counter-clockwise from x (right)
_RANGE = 28.0       # m: objects without a point are not evaluated, so that small images suffice
_SHRINK = 0.98      # rays meet boxes 1 % inside their sides, so that every hit counts as a point in the box
_GROUND_INTENSITY, _THING_INTENSITY = 12.0, 40.0


_FLAT = np.cos(_ELEVATION)[:, None]
# Unit vectors of all rays in the LiDAR frame (x right, y forward, z up): (32, 360, 3).
RAYS = np.stack([_FLAT * np.cos(_AZIMUTH), _FLAT * np.sin(_AZIMUTH),
                 np.broadcast_to(np.sin(_ELEVATION)[:, None], (BEAMS, COLUMNS))], -1)
_SIGNS = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), -1).reshape(-1, 3)


def scan(rotation: np.ndarray, translation: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first hit of each LiDAR ray.

    Args:
        rotation, translation: LiDAR to local world; ground is z = 0.
        boxes: (N, 7): centre x, y, z, width, length, height (m) and yaw in the local world.

    Returns:
        points (P, 5) float32 as in nuScenes' files: x, y, z in the LiDAR frame (m), intensity, ring; and the number
        of points on each box, (N,) int.
    """
    world = RAYS @ rotation.T
    down = world[..., 2] < -1e-9
    distance = np.where(down, -translation[2] / np.where(down, world[..., 2], -1), np.inf)
    owner = np.full(distance.shape, -1)
    half = boxes[:, [4, 3, 5]] / 2
    cos, sin, zero, one = np.cos(boxes[:, 6]), np.sin(boxes[:, 6]), np.zeros(len(boxes)), np.ones(len(boxes))
    turns = np.stack([cos, sin, zero, -sin, cos, zero, zero, zero, one], -1).reshape(-1, 3, 3)  # world to box
    starts = np.einsum('nij,nj->ni', turns, translation - boxes[:, :3])
    spans = _spans(rotation, translation, boxes, half, turns, starts)
    for i, (first, last) in enumerate(spans):
        if first > last:
            continue
        columns = np.arange(first, last + 1) % COLUMNS
        ray = world[:, columns] @ turns[i].T
        with np.errstate(divide='ignore'):
            inverse = 1 / ray
        near, far = (-_SHRINK * half[i] - starts[i]) * inverse, (_SHRINK * half[i] - starts[i]) * inverse
        enter = np.minimum(near, far).max(-1)
        leave = np.maximum(near, far).min(-1)
        closer = (enter < leave) & (enter > 0) & (enter < distance[:, columns])
        distance[:, columns] = np.where(closer, enter, distance[:, columns])
        owner[:, columns] = np.where(closer, i, owner[:, columns])
    hit = distance < _RANGE
    points = np.zeros((int(hit.sum()), 5), np.float32)
    points[:, :3] = RAYS[hit] * distance[hit][:, None]
    points[:, 3] = np.where(owner[hit] < 0, _GROUND_INTENSITY, _THING_INTENSITY)
    points[:, 4] = np.nonzero(hit)[0]
    return points, np.bincount(owner[hit & (owner >= 0)], minlength=len(boxes))


def _spans(rotation, translation, boxes, half, turns, starts) -> np.ndarray:
    """First and last azimuth column (N, 2) that can meet each box; all columns when the LiDAR is within 1 m of it."""
    offset = boxes[:, :3] - translation
    corners = np.einsum('nki,nij->nkj', _SIGNS * half[:, None], turns) + offset[:, None]
    corners, middle = corners @ rotation, offset @ rotation
    mid = np.arctan2(middle[:, 1], middle[:, 0])
    spread = (np.arctan2(corners[..., 1], corners[..., 0]) - mid[:, None] + np.pi) % (2 * np.pi) - np.pi
    step = 2 * np.pi / COLUMNS
    spans = np.stack([np.floor((mid + spread.min(1)) / step) - 1, np.ceil((mid + spread.max(1)) / step) + 1],
                     1).astype(int)
    spans[(np.abs(starts[:, :2]) < half[:, :2] + 1).all(1)] = 0, COLUMNS - 1
    far = np.linalg.norm(offset[:, :2], axis=1) - np.linalg.norm(half[:, :2], axis=1) > _RANGE
    spans[far] = 1, 0
    return spans
