"""Boxes to draw, from data samples or result files, and their projection."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from georope.datasets.camera_labels import box_corners

# Corner i has the signs of its three bits: x forward (bit 2), y left (bit 1), z up (bit 0), see ``box_corners``.
EDGES = np.array([[i, i | bit] for bit in (1, 2, 4) for i in range(8) if not i & bit])
FOOTPRINT = [4, 6, 2, 0]  # bottom corners: front right, front left, back left, back right
FRONT = [4, 6, 7, 5]
NEAR = 0.1  # metres; closer to the camera plane nothing is drawn


@dataclasses.dataclass
class Boxes:
    """n boxes of one frame, in its LiDAR frame (x right, y forward, z up for nuScenes), metres.

    Attributes:
        corners: (n, 8, 3) float64; corner i lies at the far end of the box's own x (forward), y (left), z (up) axis
            where bit 2, 1, 0 of i is set.
        names: n class names.
        velocity: (n, 2) in m/s; NaN where unknown.
        scores: (n,), or None for ground truth.
        ids: n track ids, or None where nothing is tracked.
    """

    corners: np.ndarray
    names: Sequence[str]
    velocity: np.ndarray
    scores: np.ndarray | None = None
    ids: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def build(cls, centres, sizes, rotations, names, velocity, scores=None) -> Boxes:
        """From gravity centres (n, 3), sizes (n, 3) as length, width, height, and rotation matrices (n, 3, 3)."""
        centres, sizes = (np.asarray(x, dtype=np.float64).reshape(-1, 3) for x in (centres, sizes))
        corners = box_corners(centres, sizes[:, [1, 0, 2]], np.asarray(rotations, dtype=np.float64).reshape(-1, 3, 3))
        return cls(corners, list(names), np.asarray(velocity, dtype=np.float64).reshape(-1, 2),
                   None if scores is None else np.asarray(scores, dtype=np.float64).reshape(-1))

    @classmethod
    def from_instances(cls, instances, classes: Sequence[str]) -> Boxes:
        """From ``pred_instances_3d`` or ``gt_instances_3d`` of a data sample (boxes of 7 or 9 dims)."""
        boxes = instances.bboxes_3d
        tensor = boxes.tensor.detach().cpu().double().numpy()
        unknown = np.full((len(tensor), 2), np.nan)
        scores = instances.scores_3d.detach().cpu().numpy() if 'scores_3d' in instances else None
        return cls.build(boxes.gravity_center.detach().cpu().numpy(), tensor[:, 3:6], yaw_matrices(tensor[:, 6]),
                         [classes[label] for label in instances.labels_3d.tolist()],
                         tensor[:, 7:9] if tensor.shape[1] == 9 else unknown, scores)

    @classmethod
    def from_results(cls, results: Sequence[dict], lidar2global: np.ndarray) -> Boxes:
        """From one frame's list of boxes of a nuScenes detection or tracking JSON.

        Args:
            results: the boxes, global frame.
            lidar2global: (4, 4).

        Raises:
            ValueError: a box lacks a field.
        """
        rotation, origin = lidar2global[:3, :3], lidar2global[:3, 3]
        kind = 'tracking' if results and 'tracking_id' in results[0] else 'detection'

        def column(key: str) -> list:
            missing = [i for i, box in enumerate(results) if key not in box]
            if missing:
                raise ValueError(f'box {missing[0]} of sample {results[missing[0]].get("sample_token")} has no {key}: '
                                 f'not a nuScenes {kind} file')
            return [box[key] for box in results]

        def array(key: str, width: int) -> np.ndarray:
            return np.array(column(key), dtype=np.float64).reshape(-1, width)

        quaternions = array('rotation', 4)[:, [1, 2, 3, 0]]
        matrices = Rotation.from_quat(quaternions).as_matrix() if len(results) else np.zeros((0, 3, 3))
        velocity = np.pad(array('velocity', 2), ((0, 0), (0, 1))) @ rotation
        boxes = cls.build((array('translation', 3) - origin) @ rotation, array('size', 3)[:, [1, 0, 2]],
                          rotation.T @ matrices, column(f'{kind}_name'), velocity[:, :2],
                          array(f'{kind}_score', 1))
        if kind == 'tracking':
            boxes.ids = [str(track) for track in column('tracking_id')]
        return boxes

    def above(self, threshold: float) -> Boxes:
        """The boxes whose score is at least the threshold."""
        keep = np.flatnonzero(self.scores >= threshold)

        def kept(items):
            return None if items is None else [items[i] for i in keep]

        return Boxes(self.corners[keep], kept(self.names), self.velocity[keep], self.scores[keep], kept(self.ids))


def yaw_matrices(yaw: np.ndarray) -> np.ndarray:
    """(n,) angles about z -> rotation matrices (n, 3, 3)."""
    cos, sin, zero = np.cos(yaw), np.sin(yaw), np.zeros_like(yaw)
    return np.stack([cos, -sin, zero, sin, cos, zero, zero, zero, zero + 1], axis=-1).reshape(-1, 3, 3)


def project_segments(segments: np.ndarray, lidar2img: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project line segments, cut off where they pass behind the near plane.

    Args:
        segments: (..., 2, 3) end points, LiDAR frame, metres.
        lidar2img: (4, 4).

    Returns:
        pixels (..., 2, 2) as u, v, and visible (...,), False for segments wholly behind the near plane.
    """
    ends = segments @ lidar2img[:3, :3].T + lidar2img[:3, 3]
    depth = ends[..., 2]
    visible = depth.max(-1) > NEAR
    # Linear in space, hence also in (u d, v d, d): move an end behind the plane onto it.
    with np.errstate(divide='ignore', invalid='ignore'):
        share = (NEAR - depth) / (depth[..., ::-1] - depth)
        moved = ends + share[..., None] * (ends[..., ::-1, :] - ends)
        ends = np.where((depth < NEAR)[..., None] & visible[..., None, None], moved, ends)
        return ends[..., :2] / ends[..., 2:], visible
