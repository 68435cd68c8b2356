"""The ground as a texture: asphalt, kerbs, lane marks and plazas, with a coarser copy for the distance."""
from __future__ import annotations

import cv2
import numpy as np

_PIXEL = 0.2    # m per texture pixel
_BORDER = 75.0  # m of texture around the drive
_COARSE = 3     # halvings of the coarse copy

# Strips from the outside in: (offset from, offset to) of the ego lane's middle in m, BGR.
_STRIPS = (((-33, 36), (118, 132, 138)), ((-8.6, 12.1), (150, 156, 160)), ((-4.95, 8.45), (84, 82, 80)),
           ((-1.95, 5.45), (98, 96, 94)))
_LINES = ((-1.95, 0.2, False), (5.45, 0.2, False), (1.75, 0.2, True))  # offset, width in m, dashed


class Ground:
    """Ground colours of one scene, looked up by local world coordinates."""

    def __init__(self, rng: np.random.Generator, street, travel: float):
        line = street.point(np.arange(-90, travel + 90, 1.0))
        self._corner = line.min(0) - _BORDER
        shape = np.ceil((line.max(0) + _BORDER - self._corner) / _PIXEL).astype(int)
        grass = np.array([70, 112, 104]) + rng.integers(-12, 12, 3)
        image = np.full((shape[1], shape[0], 3), grass, np.uint8)
        s = np.arange(-90, travel + 90, 1.0)
        for (low, high), bgr in _STRIPS:
            outline = np.concatenate([street.point(s, low), street.point(s, high)[::-1]])
            tone = np.array(bgr) + rng.integers(-9, 10)
            cv2.fillPoly(image, [self._pixels(outline)], tuple(int(v) for v in tone), cv2.LINE_AA, shift=4)
        for offset, width, dashed in _LINES:
            for start in np.arange(-90, travel + 86, 8.0):
                piece = np.linspace(start, start + (3.5 if dashed else 8.0), 5)
                strip = np.concatenate([street.point(piece, offset - width / 2),
                                        street.point(piece, offset + width / 2)[::-1]])
                cv2.fillPoly(image, [self._pixels(strip)], (225, 228, 228), cv2.LINE_AA, shift=4)
        noise = rng.normal(0, 1, (shape[1] // 4 + 1, shape[0] // 4 + 1)).astype(np.float32)
        noise = 5 * cv2.resize(noise, tuple(shape), interpolation=cv2.INTER_CUBIC)
        noise += rng.normal(0, 3, noise.shape).astype(np.float32)
        self._fine = np.clip(image + noise[..., None], 0, 255).astype(np.uint8)
        coarse = self._fine
        for _ in range(_COARSE):
            coarse = cv2.pyrDown(coarse)
        self._coarse = coarse
        self.road = np.concatenate([street.point(s, -4.95), street.point(s, 8.45)[::-1]])  # outline, local m

    def _pixels(self, xy):
        return np.round(((xy - self._corner) / _PIXEL - 0.5) * 16).astype(np.int32)

    def colours(self, x: np.ndarray, y: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """BGR float32 (H, W, 3) at points (H, W) float32 in metres; the coarse copy takes over with ``distance``, m."""
        u = (x - np.float32(self._corner[0])) / np.float32(_PIXEL) - 0.5
        v = (y - np.float32(self._corner[1])) / np.float32(_PIXEL) - 0.5
        fine = cv2.remap(self._fine, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        scale = np.float32(1 / 2 ** _COARSE)
        coarse = cv2.remap(self._coarse, u * scale, v * scale, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        weight = np.clip((distance - 8) / 16, 0, 1)[..., None]
        return fine + weight * (coarse.astype(np.float32) - fine)
