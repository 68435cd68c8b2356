"""Lines and dots in space, for cameras and bird's-eye view."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

import cv2
import numpy as np

from georope.visualization.draw import _SHIFT, _fixed, _font, _line


@dataclasses.dataclass
class Stroke:
    """A line, or of a single point a dot; ``draw_camera``, ``draw_bev`` and ``draw_frame`` take them.

    Attributes:
        points: (n, 3), LiDAR frame, metres.
        colour: BGR.
        width: of the line, or diameter of the dot, pixels.
        label: written beside the last point.
    """

    points: np.ndarray
    colour: tuple[int, int, int]
    width: int = 1
    label: str = ''

    def draw(self, image: np.ndarray, project: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> list[tuple]:
        """Draw in place.

        Args:
            image: (h, w, 3) uint8.
            project: segments (n, 2, 3) -> pixels (n, 2, 2) and visible (n,), as ``project_segments``.

        Returns:
            The label as a text of ``draw``, at its position in the image.
        """
        height, width = image.shape[:2]
        points = np.asarray(self.points, dtype=np.float64)
        dot = len(points) == 1
        segments, visible = project(points[None, [0, 0]] if dot else np.stack((points[:-1], points[1:]), axis=1))
        for start, end in segments[visible]:
            if dot:
                cv2.circle(image, _fixed(start).tolist(), (self.width << _SHIFT) // 2, self.colour, -1, cv2.LINE_AA,
                           _SHIFT)
            else:
                _line(image, start, end, self.colour, self.width)
        x, y = segments[-1, 1]
        if not (self.label and visible[-1] and 0 <= x < width and 0 <= y < height):
            return []
        right = x + _font(12).getlength(self.label) + 16 < width
        return [(float(x + 8 if right else x - 8), float(np.clip(y, 12, height - 12)), self.label, self.colour, 12,
                 'lm' if right else 'rm')]
