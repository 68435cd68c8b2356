"""Checks of the calibrations and poses of an info file, before anything is computed from them."""
import warnings

import numpy as np

from georope.errors import InputError

# Plausible motion of a vehicle, our choice: fast enough for every road, slow enough to find a wrong matrix.
MAX_SPEED = 60.0  # m/s
MAX_TURN = 2.0  # rad/s
UNKNOWN_GAP = 0.1  # s between the frame and a camera that has neither pose nor time
# Rounding of float32 matrices: 2 km have steps of 1e-4 m.
ROUNDING = 1e-2
# How far a rotation may be from orthonormal, entry by entry: the tolerance of dataset, metric and pictures (choice).
ORTHONORMAL = 1e-3
EXACT = 1e-12  # below, it is rounding of float64 and stays as it is


class CalibrationError(InputError):
    """A matrix of an info file cannot be a calibration or pose."""


def as_4x4(matrix, where: str) -> np.ndarray:
    """A 3x3, 3x4 or 4x4 matrix as float64 4x4, filled up with the identity.

    Raises:
        CalibrationError: Another shape, or values that are not finite; the message begins with ``where``.
    """
    try:
        matrix = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise CalibrationError(f'{where} is not a matrix of numbers.') from None
    if matrix.shape not in ((3, 3), (3, 4), (4, 4)):
        raise CalibrationError(f'{where} has shape {matrix.shape}; 3x3, 3x4 or 4x4 is needed.')
    if not np.isfinite(matrix).all():
        raise CalibrationError(f'{where} has values that are not finite.')
    full = np.eye(4)
    full[:matrix.shape[0], :matrix.shape[1]] = matrix
    return full


def as_pose(matrix, where: str) -> np.ndarray:
    """A rigid transform as float64 4x4; a rotation that is nearly orthonormal becomes the nearest one that is.

    Raises:
        CalibrationError: As :func:`as_4x4`, or the rotation part is singular, not orthonormal or mirrored.
    """
    pose = as_4x4(matrix, where)
    rotation = pose[:3, :3]
    deviation = np.abs(rotation @ rotation.T - np.eye(3)).max()
    if deviation > ORTHONORMAL or np.linalg.det(rotation) < 0:
        raise CalibrationError(f'{where} has a rotation that is not orthonormal: {rotation.tolist()}.')
    if np.abs(pose[3] - (0, 0, 0, 1)).max() > 0:
        raise CalibrationError(f'{where} has the last row {pose[3].tolist()}; 0, 0, 0, 1 is needed.')
    if deviation > EXACT:
        left, _, right = np.linalg.svd(rotation)
        pose[:3, :3] = left @ right
    return pose


def as_intrinsics(matrix, where: str) -> np.ndarray:
    """A camera matrix as float64 4x4.

    Raises:
        CalibrationError: As :func:`as_4x4`, or the matrix is singular.
    """
    intrinsics = as_4x4(matrix, where)
    if abs(np.linalg.det(intrinsics)) < 1e-9:
        raise CalibrationError(f'{where} is singular: {intrinsics.tolist()}.')
    return intrinsics


def check_motion(path: str, frames: list[dict]) -> None:
    """Warn about matrices that are possible but not plausible, in one warning per file. Two things are compared:

    - ``lidar2cam`` against the chain ``inv(cam2ego) @ inv(camera's ego pose) @ ego pose @ lidar2ego``. Where the
      camera's own ego pose is not in the file, that of the frame is used; the ego may have moved in between.
    - The motion between consecutive frames of a scene against the speed of a vehicle.

    Args:
        path: Info file, for the message.
        frames: Parsed frames in order: ``token``, ``scene_token``, ``timestamp``, ``ego2global``, ``lidar2ego`` (4, 4),
            ``cam_names`` (N), ``lidar2cam`` (N, 4, 4) and ``images`` with, as far as known, ``cam2ego``, ``ego2global``
            (4, 4) and ``timestamp`` (seconds), else None.
    """
    findings = []
    previous = None
    for frame in frames:
        if previous is not None and previous['scene_token'] == frame['scene_token']:
            moved = np.linalg.norm(frame['ego2global'][:3, 3] - previous['ego2global'][:3, 3])
            gap = frame['timestamp'] - previous['timestamp']
            if frame['scene_token'] and moved > 1 + MAX_SPEED * gap:
                findings.append(f'frame {frame["token"]}: the ego moved {moved:.0f} m within {gap:.2f} s after frame '
                                f'{previous["token"]}')
        for camera, lidar2cam in zip(frame['cam_names'], frame['lidar2cam']):
            image = frame['images'][camera]
            if image['cam2ego'] is None:
                continue
            pose, gap = image['ego2global'], 0.0
            if pose is None:
                pose, taken = frame['ego2global'], image['timestamp']
                gap = UNKNOWN_GAP if taken is None else abs(taken - frame['timestamp'])
            chain = np.linalg.inv(pose @ image['cam2ego']) @ frame['ego2global'] @ frame['lidar2ego']
            distance, angle = difference(lidar2cam, chain)
            if distance > ROUNDING + MAX_SPEED * gap or angle > ROUNDING + MAX_TURN * gap:
                findings.append(f'frame {frame["token"]}, camera {camera}: lidar2cam is {distance:.2f} m and '
                                f'{np.degrees(angle):.1f} degrees from its cam2ego, lidar2ego and ego poses')
        previous = frame
    if findings:
        shown = '\n  '.join(findings[:5]) + (f'\n  and {len(findings) - 5} more' if len(findings) > 5 else '')
        warnings.warn(f'{path}: implausible calibrations or poses, boxes will not fit the images there:\n  {shown}',
                      stacklevel=2)


def difference(first: np.ndarray, second: np.ndarray) -> tuple:
    """Distance of the sensors' positions (m) and angle between their axes (rad) of two (4, 4) frame -> sensor poses."""
    offset = -first[:3, :3].T @ first[:3, 3] + second[:3, :3].T @ second[:3, 3]
    # robust for small angles, unlike arccos of the trace
    angle = 2 * np.arcsin(min(1.0, np.linalg.norm(first[:3, :3] - second[:3, :3]) / (2 * np.sqrt(2))))
    return float(np.linalg.norm(offset)), float(angle)
