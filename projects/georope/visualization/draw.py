"""Draw camera images and a bird's-eye view with OpenCV; no display, no global state. All colours are BGR."""
from __future__ import annotations

import colorsys
import functools
import os
import zlib
from collections.abc import Sequence

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from georope.visualization.boxes import EDGES, FOOTPRINT, FRONT, NEAR, Boxes, project_segments

BACKGROUND, PANEL, GRID, TEXT, FAINT = (24, 20, 18), (34, 29, 26), (72, 63, 58), (235, 232, 228), (160, 150, 144)
TRUTH = (255, 255, 255)
COLOURS = {
    'car': (240, 201, 76), 'truck': (28, 159, 255), 'construction_vehicle': (255, 125, 199), 'bus': (10, 214, 255),
    'trailer': (115, 163, 212), 'barrier': (177, 165, 154), 'motorcycle': (160, 214, 6), 'bicycle': (153, 237, 128),
    'pedestrian': (131, 91, 255), 'traffic_cone': (44, 114, 243),
}
# As seen from the vehicle; cameras of other names follow in the order given.
LAYOUT = ('CAM_FRONT_LEFT', 'CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_BACK_LEFT', 'CAM_BACK', 'CAM_BACK_RIGHT')
_SHIFT = 4  # OpenCV draws to 1/16 pixel


def class_colour(name: str) -> tuple[int, int, int]:
    """The colour of a class; that of a class which nuScenes does not have depends on its name only."""
    palette = list(COLOURS.values())
    return COLOURS.get(name, palette[zlib.crc32(name.encode()) % len(palette)])


def track_colour(track: str) -> tuple[int, int, int]:
    """The colour of a track, from its id only; ids that follow each other get hues far apart."""
    number = _short(track)
    seed = int(number) if number.isdecimal() else zlib.crc32(track.encode())
    rgb = colorsys.hls_to_rgb(seed * 0.618034 % 1, (0.7, 0.8, 0.62)[seed % 3], 1.)  # blue must show on dark, too
    return tuple(round(255 * part) for part in rgb[::-1])


def _colours(boxes: Boxes) -> list[tuple[int, int, int]]:
    """Each track has its own colour, so that a lost track is visible; other boxes have that of their class."""
    return [class_colour(name) for name in boxes.names] if boxes.ids is None else [track_colour(i) for i in boxes.ids]


def _short(track: str) -> str:
    """The part of an id that is written: what follows the scene's name, shortened if long."""
    track = track.rsplit('/', 1)[-1]
    return track if len(track) <= 6 else f'{track[:4]}\u2026'


@functools.lru_cache(None)
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(os.path.join(matplotlib.get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf'), size)


def _write(image: np.ndarray, texts: Sequence[tuple], boxed: bool = False) -> None:
    """Write (x, y, text, colour, size, anchor) items in place; boxed puts them on a dark ground."""
    if not texts:
        return
    canvas = Image.fromarray(image)
    brush = ImageDraw.Draw(canvas, 'RGBA')
    for x, y, text, colour, size, anchor in texts:
        if boxed:
            left, top, right, bottom = brush.textbbox((x, y), text, _font(size), anchor)
            brush.rectangle((left - 3, top - 2, right + 3, bottom + 2), fill=(*BACKGROUND, 190))
        brush.text((x, y), text, colour, _font(size), anchor)
    image[:] = np.asarray(canvas)


def _apart(texts: Sequence[tuple]) -> list[tuple]:
    """The texts that do not overlap an earlier one."""
    kept, areas = [], []
    for item in texts:
        x, y, text, _, size, anchor = item
        left, top, right, bottom = _font(size).getbbox(text, anchor=anchor)
        area = (x + left - 3, y + top - 2, x + right + 3, y + bottom + 2)
        if all(area[2] < a[0] or a[2] < area[0] or area[3] < a[1] or a[3] < area[1] for a in areas):
            kept.append(item)
            areas.append(area)
    return kept


def _fixed(points: np.ndarray) -> np.ndarray:
    return np.round(np.asarray(points) * (1 << _SHIFT)).astype(np.int32)


def _line(image: np.ndarray, start, end, colour, width: int = 1) -> None:
    start, end = _fixed([start, end]).tolist()
    cv2.line(image, start, end, colour, width, cv2.LINE_AA, _SHIFT)


def _dashed(image: np.ndarray, start, end, colour, width: int = 1, dash: float = 6.) -> None:
    """A dashed line: only the part inside the image, so that far ends cost nothing."""
    height, wide = image.shape[:2]
    start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
    first, last = 0., 1.
    for axis, limit in ((0, wide), (1, height)):
        step = end[axis] - start[axis]
        if abs(step) < 1e-9:
            if not -2 <= start[axis] <= limit + 2:
                return
            continue
        low, high = sorted(((-2 - start[axis]) / step, (limit + 2 - start[axis]) / step))
        first, last = max(first, low), min(last, high)
    length = np.linalg.norm(end - start) * (last - first)
    if first >= last or length == 0:
        return
    start, end = start + first * (end - start), start + last * (end - start)
    # An odd number of pieces, so that both ends are drawn: corners stay visible.
    marks = np.linspace(0, 1, 2 * max(1, int(round(length / (2 * dash)))))
    for low, high in zip(marks[::2], marks[1::2]):
        _line(image, start + low * (end - start), start + high * (end - start), colour, width)


def _tint(image: np.ndarray, polygon: np.ndarray, colour, strength: float) -> None:
    """Fill a convex polygon translucently, in place."""
    low = np.clip(np.floor(polygon.min(0)).astype(int), 0, image.shape[1::-1])
    high = np.clip(np.ceil(polygon.max(0)).astype(int) + 1, 0, image.shape[1::-1])
    if (high <= low).any():
        return
    part = image[low[1]:high[1], low[0]:high[0]]
    filled = part.copy()
    cv2.fillConvexPoly(filled, _fixed(polygon - low), colour, cv2.LINE_AA, _SHIFT)
    part[:] = cv2.addWeighted(filled, strength, part, 1 - strength, 0)


def draw_camera(image: np.ndarray, lidar2img: np.ndarray, predictions: Boxes | None = None,
                ground_truth: Boxes | None = None, name: str = '', strokes: Sequence = ()) -> np.ndarray:
    """Draw boxes into a camera image.

    Args:
        image: (h, w, 3) uint8, BGR.
        lidar2img: (4, 4), LiDAR frame -> pixels of this very image.
        predictions: drawn solid in the colour of their class or track, front face tinted, with class, track id and
            score.
        ground_truth: drawn dashed and white.
        name: written into the corner.
        strokes: lines and dots over the boxes, see ``strokes.Stroke``.

    Returns:
        A new image of the same size.
    """
    image, lidar2img = image.copy(), np.asarray(lidar2img, dtype=np.float64)
    height, width = image.shape[:2]
    texts = []
    for boxes, truth in ((ground_truth, True), (predictions, False)):
        if boxes is None or not len(boxes):
            continue
        colours = _colours(boxes)
        edges, visible = project_segments(boxes.corners[:, EDGES], lidar2img)
        centre = boxes.corners.mean(1) @ lidar2img[:3, :3].T + lidar2img[:3, 3]
        for i in np.argsort(-centre[:, 2]):  # far boxes first, near ones over them
            shown = edges[i][visible[i]]
            if not len(shown) or (shown.max((0, 1)) < 0).any() or (shown.min((0, 1)) > (width, height)).any():
                continue
            colour = TRUTH if truth else colours[i]
            corners = boxes.corners[i] @ lidar2img[:3, :3].T + lidar2img[:3, 3]
            if not truth and (corners[:, 2] > NEAR).all():
                _tint(image, corners[FRONT, :2] / corners[FRONT, 2:], colour, 0.35)
            low, high = shown.min((0, 1)), shown.max((0, 1))
            extent = (high - low).max()
            for start, end in shown:
                if truth:
                    _dashed(image, start, end, colour)
                else:
                    _line(image, start, end, colour, 2 if extent > 40 else 1)
            if not truth and centre[i, 2] > NEAR and extent > 16:
                track = '' if boxes.ids is None else f' {_short(boxes.ids[i])}'
                text = f'{boxes.names[i]}{track} {boxes.scores[i]:.2f}'
                margin = min(_font(11).getlength(text) / 2 + 4, width / 2)
                texts.append((float(np.clip((low[0] + high[0]) / 2, margin, width - margin)),
                              float(max(low[1] - 3, 16)), text, colour, 11, 'mb'))
    for stroke in strokes:
        texts += stroke.draw(image, lambda segments: project_segments(segments, lidar2img))
    if name:
        texts.append((8, 8, name, TEXT, 13, 'lt'))
    _write(image, _apart(texts[::-1]), boxed=True)
    return image


def draw_bev(size: int, predictions: Boxes | None = None, ground_truth: Boxes | None = None,
             views: Sequence[np.ndarray] = (), bev_range: float = 55., strokes: Sequence = ()) -> np.ndarray:
    """Draw boxes from above: LiDAR x to the right, y (forward) upward, the LiDAR in the middle.

    Args:
        size: side of the square image in pixels.
        predictions: solid, tinted, in the colour of their class or track, with a stroke to the front and an arrow that
            is as long as the way of one second; tracks with their id.
        ground_truth: dashed and white, with the same strokes.
        views: horizontal viewing directions of the cameras, (2, 2) each: left and right edge as unit vectors.
        bev_range: metres from the middle to the edge.
        strokes: lines and dots over the boxes, see ``strokes.Stroke``.

    Returns:
        (size, size, 3) uint8.
    """
    image = np.full((size, size, 3), PANEL, dtype=np.uint8)
    scale = size / 2 / bev_range

    def pixels(points) -> np.ndarray:
        return np.asarray(points) * (scale, -scale) + size / 2

    middle = _fixed([size / 2, size / 2]).tolist()
    for view in views:
        fan = pixels(np.vstack([[[0, 0]], view * bev_range * 2]))
        _tint(image, fan, FAINT, 0.06)
    texts = [(10, size - 10, 'arrows: motion in one second', FAINT, 11, 'lb')]
    for radius in range(10, int(bev_range) + 1, 10):
        cv2.circle(image, middle, int(radius * scale * (1 << _SHIFT)), GRID, 1, cv2.LINE_AA, _SHIFT)
        x, y = pixels(radius * np.array([np.sin(0.5), -np.cos(0.5)]))
        texts.append((x, y, f'{radius} m', FAINT, 11, 'mm'))
    nose = pixels([[0, 2.2], [1.1, -1.8], [0, -1.0], [-1.1, -1.8]])
    cv2.fillPoly(image, [_fixed(nose)], TEXT, cv2.LINE_AA, _SHIFT)
    ids = []
    for boxes, truth in ((predictions, False), (ground_truth, True)):
        if boxes is None:
            continue
        for corners, velocity, colour in zip(boxes.corners, boxes.velocity, _colours(boxes)):
            colour = TRUTH if truth else colour
            outline, centre = pixels(corners[FOOTPRINT, :2]), corners[:, :2].mean(0)
            front = pixels(corners[FRONT, :2].mean(0))
            if not truth:
                _tint(image, outline, colour, 0.35)
            for start, end in zip(outline, np.roll(outline, -1, 0)):
                (_dashed if truth else _line)(image, start, end, colour, 1 if truth else 2)
            _line(image, pixels(centre), front, colour, 1)
            if np.linalg.norm(velocity) > 0.5:  # False for NaN
                start, end = _fixed([front, front + velocity * (scale, -scale)]).tolist()
                tip = min(0.5, 6 / max(1e-6, float(np.linalg.norm(velocity) * scale)))
                cv2.arrowedLine(image, start, end, colour, 1, cv2.LINE_AA, _SHIFT, tip)
        if boxes.ids is not None:
            beside = pixels(boxes.corners[:, :, :2].max(1))
            ids += [(float(x + 5), float(y), _short(track), track_colour(track), 11, 'lb')
                    for (x, y), track in zip(beside, boxes.ids)]
    labels = [label for stroke in strokes for label in stroke.draw(image, lambda segments: (
        pixels(segments[..., :2]), np.ones(len(segments), dtype=bool)))]
    names = [*labels[::-1], *ids]
    shown = _apart([*names, *texts])  # where they meet, names stay
    _write(image, [text for text in shown if text in texts])
    _write(image, [text for text in shown if text in names], boxed=True)
    return image


def _views(images: Sequence[np.ndarray], lidar2img: np.ndarray) -> list[np.ndarray]:
    """Directions from above of the left and right edge of every image, at the height of the principal ray."""
    views = []
    for image, matrix in zip(images, lidar2img):
        inverse = np.linalg.inv(np.asarray(matrix, dtype=np.float64))[:3, :3]
        row = image.shape[0] / 2
        rays = np.array([inverse @ (u, row, 1) for u in (0, image.shape[1])])[:, :2]
        views.append(rays / np.linalg.norm(rays, axis=1, keepdims=True))
    return views


def draw_frame(images: Sequence[np.ndarray], lidar2img: np.ndarray, predictions: Boxes | None = None,
               ground_truth: Boxes | None = None, cam_names: Sequence[str] = (), title: str = '',
               cell_width: int = 600, bev_range: float = 55., strokes: Sequence = ()) -> np.ndarray:
    """One picture of a frame: its cameras in a grid, three to a row, and the bird's-eye view to their right.

    Args:
        images: N images (h, w, 3) uint8, BGR, of any sizes. Each is scaled to fit a cell, then drawn upon.
        lidar2img: (N, 4, 4), LiDAR frame -> pixels of the image given.
        predictions, ground_truth: boxes in the LiDAR frame.
        cam_names: N names; the six of nuScenes stand where they look (front row, back row).
        title: headline.
        cell_width: width of a camera's cell in pixels; its height follows the first image.
        bev_range: metres from the LiDAR to the edge of the bird's-eye view.
        strokes: lines and dots for all of them, see ``strokes.Stroke``.

    Returns:
        (H, W, 3) uint8, BGR.
    """
    if not images:
        raise ValueError('draw_frame needs at least one image')
    if not len(images) == len(lidar2img) == len(cam_names or images):
        raise ValueError(f'{len(images)} images, {len(lidar2img)} matrices and {len(cam_names)} camera names')
    names = list(cam_names) or [f'camera {i}' for i in range(len(images))]
    order = sorted(range(len(names)), key=lambda i: LAYOUT.index(names[i]) if names[i] in LAYOUT else len(LAYOUT) + i)
    columns = min(3, len(images))
    rows = -(-len(images) // columns)
    cell_height = round(cell_width * images[0].shape[0] / images[0].shape[1])
    gap, head = 6, 64
    side = max(rows * (cell_height + gap) - gap, cell_width)
    picture = np.full((head + side + gap, columns * (cell_width + gap) + side + 2 * gap, 3), BACKGROUND, np.uint8)
    for cell, i in enumerate(order):
        scale = min(cell_width / images[i].shape[1], cell_height / images[i].shape[0])
        size = (round(images[i].shape[1] * scale), round(images[i].shape[0] * scale))
        zoom = np.diag([size[0] / images[i].shape[1], size[1] / images[i].shape[0], 1, 1])
        small = cv2.resize(images[i], size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        drawn = draw_camera(small, zoom @ lidar2img[i], predictions, ground_truth, names[i], strokes)
        top, left = head + cell // columns * (cell_height + gap), gap + cell % columns * (cell_width + gap)
        picture[top:top + size[1], left:left + size[0]] = drawn
    left = gap + columns * (cell_width + gap)
    picture[head:head + side, left:left + side] = draw_bev(
        side, predictions, ground_truth, _views(images, lidar2img), bev_range, strokes)
    _legend(picture, predictions, ground_truth, title)
    return picture


def _legend(picture: np.ndarray, predictions: Boxes | None, ground_truth: Boxes | None, title: str) -> None:
    texts = [(8, 18, title, TEXT, 16, 'lm')]
    x, y = 8., 46
    entries = []
    if ground_truth is not None:
        entries.append((f'ground truth ({len(ground_truth)})', TRUTH, True))
    if predictions is not None:
        present = list(dict.fromkeys(predictions.names))
        if predictions.ids is not None:
            entries.append((f'{len(predictions)} tracks, a colour each, dots where they were:', TEXT, None))
        entries += [(f'{name} ({list(predictions.names).count(name)})', *((class_colour(name), False) if
                     predictions.ids is None else (TEXT, None))) for name in
                    sorted(present, key=lambda n: list(COLOURS).index(n) if n in COLOURS else len(COLOURS))]
        if not present:
            entries.append(('no predictions above the threshold', FAINT, None))
    wide = x + sum(_font(13).getlength(text) + (22 if dashed is None else 56) for text, _, dashed in entries)
    share = min(1, picture.shape[1] / wide)  # one camera and many classes: smaller, not cut off
    for text, colour, dashed in entries:
        if dashed is not None:
            (_dashed if dashed else _line)(picture, (x, y), (x + 26 * share, y), colour, 1 if dashed else 3)
            x += 34 * share
        texts.append((x, y, text, colour, int(13 * share), 'lm'))
        x += (_font(13).getlength(text) + 22) * share
    _write(picture, texts)
