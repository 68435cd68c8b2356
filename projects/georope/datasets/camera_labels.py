"""Labels of one camera image from 3D annotations: 2D boxes, centres, depths (mmdet3d's ``cam_instances``)."""
from typing import Optional

import numpy as np
from shapely.geometry import MultiPoint, box


def box_corners(centers: np.ndarray, sizes: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """Corners of boxes.

    Args:
        centers: (n, 3) metres.
        sizes: (n, 3) width, length, height in metres, the order of the nuScenes tables; length lies along the box's x.
        rotations: (n, 3, 3) box -> frame.

    Returns:
        (n, 8, 3) metres, in the frame of ``centers``; bits 2, 1, 0 of a corner's index are set where it lies at the far
        end of the box's x, y, z.
    """
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) / 2
    offsets = signs[None] * sizes[:, None, [1, 0, 2]]
    return centers[:, None] + offsets @ rotations.transpose(0, 2, 1)


def yaw_of(rotations: np.ndarray) -> np.ndarray:
    """(n, 3, 3) -> (n,) yaw in radians as pyquaternion's ``yaw_pitch_roll[0]`` defines it (mmdet3d stores that)."""
    return np.arctan2(-rotations[:, 0, 1], rotations[:, 0, 0])


def image_box(corners: np.ndarray, cam2img: np.ndarray, width: int,
              height: int) -> Optional[tuple[float, float, float, float]]:
    """Bounding box of a projected 3D box inside an image, mmdet3d's definition with the image's own size.

    It bounds (convex hull of the projections of the corners in front of the camera) within the image.

    Args:
        corners: (8, 3) metres, camera frame.
        cam2img: (3, 3).
        width, height: Image size in pixels.

    Returns:
        x1, y1, x2, y2 in pixels, or None where hull and image share no area.
    """
    front = corners[corners[:, 2] > 0]
    if not len(front):
        return None
    points = front @ cam2img.T
    points = points[:, :2] / points[:, 2:]
    low, high = points.min(0), points.max(0)
    if (low >= (width, height)).any() or (high <= 0).any():
        return None
    if (low >= 0).all() and (high <= (width, height)).all():  # the hull lies inside: its bounds are the corners'
        return (*low.tolist(), *high.tolist()) if (high > low).all() else None
    inside = MultiPoint(points).convex_hull.intersection(box(0, 0, width, height))
    return inside.bounds if inside.area > 0 else None
