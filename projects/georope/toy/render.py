"""Draws what one camera sees: ground and sky by ray, faces by polygon with a depth buffer."""
from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from .ground import Ground
from .shapes import Mesh

_NEAR = 0.3                     # m
_HAZE = 190.0                   # m: distance over which 63 % of a colour goes over into haze
_SUB = 16                       # polygon corners are drawn to 1 / 16 pixel
_MIN_AREA = 0.05                # square pixels: smaller faces are left out


@dataclass(frozen=True)
class Light:
    """Sun and sky of a scene: unit vector towards the sun, colours BGR, heights of the hills."""

    sun: np.ndarray
    sky: np.ndarray
    haze: np.ndarray
    ambient: float
    hills: np.ndarray  # sine of their elevation, all around from azimuth -pi

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Light:
        azimuth, height = rng.uniform(-np.pi, np.pi), rng.uniform(0.7, 1.1)
        sun = np.array([np.cos(azimuth) * np.cos(height), np.sin(azimuth) * np.cos(height), np.sin(height)])
        around = np.linspace(-np.pi, np.pi, 2048, endpoint=False)
        hills = 0.045 + sum(rng.uniform(.004, .014) * np.sin(rng.integers(2, 24) * around + rng.uniform(-np.pi, np.pi))
                            for _ in range(5))
        return cls(sun, np.float32([225, 175, 125]) + np.float32(rng.uniform(-25, 20, 3)),
                   np.float32([226, 220, 212]) + np.float32(rng.uniform(-10, 10, 3)), rng.uniform(0.58, 0.72), hills)


class Lens:
    """A pinhole and its pixels: intrinsic (3, 3), size (height, width), viewing rays of the pixel centres."""

    def __init__(self, intrinsic: np.ndarray, size: tuple[int, int]):
        self.intrinsic, self.size = intrinsic, size
        height, width = size
        pixel = np.stack([*np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), np.ones(size)], -1)
        rays = pixel @ np.linalg.inv(intrinsic).T
        # Unit vectors in the camera frame, (H, W, 3).
        self.rays = (rays / np.linalg.norm(rays, axis=-1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class Camera:
    """A lens somewhere in the local world; rotation, translation: camera to world."""

    lens: Lens
    rotation: np.ndarray
    translation: np.ndarray

    @property
    def intrinsic(self) -> np.ndarray:
        return self.lens.intrinsic

    @property
    def size(self) -> tuple[int, int]:
        return self.lens.size


@dataclass(frozen=True)
class Picture:
    """A rendered image.

    Attributes:
        image: (H, W, 3) uint8 BGR.
        owner: (H, W) int16, index of the mesh that each pixel shows, -1 for ground and sky.
        alone: (number of meshes,) pixels that each would fill if nothing hid it.
    """

    image: np.ndarray
    owner: np.ndarray
    alone: np.ndarray


def render(camera: Camera, meshes: list[Mesh], ground: Ground, light: Light) -> Picture:
    """Draw ``meshes`` (posed in the local world) before ground and sky."""
    image = _background(camera, ground, light)
    owner = np.full(camera.size, -1, np.int16)
    alone = np.zeros(len(meshes), int)
    if meshes:
        _draw(camera, meshes, light, image, owner, alone)
    return Picture(cv2.GaussianBlur(np.clip(image, 0, 255).astype(np.uint8), (3, 3), 0.55), owner, alone)


def _background(camera, ground, light):
    image = np.empty((*camera.size, 3), np.float32)
    rays = camera.lens.rays
    direction = (rays.reshape(-1, 3) @ camera.rotation.T.astype(np.float32)).reshape(rays.shape)
    up = direction[..., 2]
    below = up < -0.004
    rows = np.flatnonzero(~below.all(1))  # the cameras are level: sky above, ground below, few rows with both
    top = slice(0, rows[-1] + 1 if len(rows) else 0)
    azimuth = np.arctan2(direction[top, :, 1], direction[top, :, 0])
    hills = light.hills[(azimuth * np.float32(2048 / (2 * np.pi))).astype(int)]  # negative indices wrap around
    image[top] = light.haze + np.clip(up[top] / np.float32(0.45), 0, 1)[..., None] * (light.sky - light.haze)
    image[top][up[top] < hills] = 0.75 * light.haze + 0.25 * np.float32([95, 105, 90])
    rows = np.flatnonzero(below.any(1))
    if len(rows) == 0:
        return image
    floor = slice(rows[0], camera.size[0])
    distance = np.float32(camera.translation[2]) / np.maximum(-up[floor], np.float32(0.004))
    x = np.float32(camera.translation[0]) + distance * direction[floor, :, 0]
    y = np.float32(camera.translation[1]) + distance * direction[floor, :, 1]
    lit = ground.colours(x, y, distance) * np.float32(light.ambient + (1 - light.ambient) * light.sun[2])
    clear = np.exp(distance * np.float32(-1 / _HAZE))[..., None]
    np.copyto(image[floor], light.haze + clear * (lit - light.haze), where=below[floor][..., None])
    return image


def _draw(camera, meshes, light, image, owner, alone):
    scene = Mesh.join(meshes)
    index = np.repeat(np.arange(len(meshes)), [len(m.normals) for m in meshes])
    towards = np.einsum('fc,fc->f', camera.translation - scene.corners[:, 0], scene.normals)
    points = (scene.corners - camera.translation) @ camera.rotation
    keep = np.flatnonzero((towards > 1e-6) & (points[..., 2].max(1) > _NEAR))
    pixels = _project(camera, points, keep)
    fixed = np.clip(np.round((pixels - 0.5) * _SUB), -2 ** 24, 2 ** 24).astype(np.int32)
    height, width = camera.size
    low = np.maximum(fixed.min(1) // _SUB - 1, 0)
    high = np.minimum(fixed.max(1) // _SUB + 3, [width, height])
    x, y = pixels[..., 0], pixels[..., 1]
    area = 0.5 * np.abs((x * np.roll(y, -1, 1) - y * np.roll(x, -1, 1)).sum(1))
    inside = (low < high).all(1) & (area > _MIN_AREA)
    keep, fixed, low, high = keep[inside], fixed[inside], low[inside], high[inside]

    # Inverse depth of a plane is affine in the pixel: n . X = n . X0 with X = ray / inverse depth.
    normals = scene.normals[keep] @ camera.rotation
    plane = np.einsum('fc,fc->f', normals, points[keep, 0])
    affine = normals @ np.linalg.inv(camera.intrinsic) * (scene.bias[keep] / plane)[:, None]
    columns, rows = np.arange(width, dtype=np.float32) + 0.5, np.arange(height, dtype=np.float32)[:, None] + 0.5
    depth = np.zeros(camera.size, np.float32)   # inverse; ground and sky lie behind everything
    winner = np.full(camera.size, -1, np.int32)  # index into ``keep``
    shape = np.zeros(camera.size, np.uint8)      # silhouette of the mesh being drawn
    current, box = -1, (0, 0, 0, 0)
    for i, (mesh, (x0, y0), (x1, y1), (a, b, c)) in enumerate(
            zip(index[keep].tolist(), low.tolist(), high.tolist(), affine.tolist())):
        if mesh != current:
            _count(shape, box, alone, current)
            current, box = mesh, (x0, y0, x1, y1)
        box = (min(box[0], x0), min(box[1], y0), max(box[2], x1), max(box[3], y1))
        mask = np.zeros((y1 - y0, x1 - x0), np.uint8)
        cv2.fillConvexPoly(mask, fixed[i] - (x0 * _SUB, y0 * _SUB), 1, shift=4)
        region = (slice(y0, y1), slice(x0, x1))
        shape[region] |= mask
        behind = depth[region]
        inverse = a * columns[x0:x1] + (b * rows[y0:y1] + c)
        wins = inverse > behind
        wins &= mask.view(bool)
        np.copyto(behind, inverse, where=wins)
        np.copyto(winner[region], i, where=wins)
    _count(shape, box, alone, current)

    painted = winner >= 0
    owner[painted] = index[keep][winner[painted]]
    image[painted] = _shade(scene, light, np.linalg.norm(points.mean(1), axis=1))[keep][winner[painted]]
    for i in np.flatnonzero(scene.storeys[keep]):
        _add_windows(camera, points[keep[i]], slice(low[i, 1], high[i, 1]), slice(low[i, 0], high[i, 0]), winner == i,
                     depth, image, light)


def _count(shape, box, alone, current):
    """Note how many pixels the finished mesh fills, and wipe its silhouette."""
    if current >= 0:
        x0, y0, x1, y1 = box
        alone[current] = cv2.countNonZero(shape[y0:y1, x0:x1])
        shape[y0:y1, x0:x1] = 0


def _project(camera, points, keep):
    """Pixels (K, 16, 2) of the kept faces, cut at the near plane; the last corner is repeated."""
    front = points[keep, :, 2].min(1) > _NEAR
    polygons = np.empty((len(keep), 2 * points.shape[1], 3))
    polygons[:, :points.shape[1]] = points[keep]
    polygons[:, points.shape[1]:] = points[keep, -1:]
    for i in np.flatnonzero(~front):
        cut = _cut_near(points[keep[i]])
        polygons[i, :len(cut)] = cut
        polygons[i, len(cut):] = cut[-1]
    uvw = polygons @ camera.intrinsic.T
    return uvw[..., :2] / uvw[..., 2:]


def _cut_near(polygon):
    """Sutherland-Hodgman against z = _NEAR; (at most twice as many corners, 3)."""
    result = []
    for a, b in zip(polygon, np.roll(polygon, -1, 0)):
        if a[2] >= _NEAR:
            result.append(a)
        if (a[2] >= _NEAR) != (b[2] >= _NEAR):
            result.append(a + (b - a) * (_NEAR - a[2]) / (b[2] - a[2]))
    return np.array(result)


def _shade(scene, light, distance):
    """Colours (F, 3) float32 under the sun, fading into haze."""
    lit = light.ambient + (1 - light.ambient) * np.clip(scene.normals @ light.sun, 0, 1)
    clear = np.exp(-distance / _HAZE)[:, None]
    return (light.haze + clear * (scene.colours * lit[:, None] - light.haze)).astype(np.float32)


def _add_windows(camera, corners, rows, columns, mine, depth, image, light):
    """Darken rows of windows, 2.6 m apart along the wall and 3 m apart in height, where the wall is seen."""
    mine, inverse = mine[rows, columns], np.maximum(depth[rows, columns], 1e-4)
    focal, centre = camera.intrinsic[[0, 1], [0, 1]], camera.intrinsic[:2, 2]
    u = (np.arange(columns.start, columns.stop) + 0.5 - centre[0]) / focal[0]
    v = (np.arange(rows.start, rows.stop) + 0.5 - centre[1]) / focal[1]

    def is_pane(end, distance, wall):
        """Whether the coordinate along the edge from the first corner to ``end`` falls into a window."""
        axis = end - corners[0]
        axis = axis / np.linalg.norm(axis)
        along = (axis[0] * u + (axis[1] * v + axis[2])[:, None]) / inverse - axis @ corners[0]
        return along % distance > wall * distance

    pane = mine & is_pane(corners[1], 2.6, 0.35) & is_pane(corners[3], 3.0, 0.4)
    image[rows, columns][pane] = 0.5 * image[rows, columns][pane] + 0.12 * light.sky
