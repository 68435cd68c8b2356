"""Pictures and films as files: written beside, then renamed; folders are made."""
from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

import cv2
import numpy as np
from PIL import Image

from georope.files import written_beside

GIF_WIDTH = 1280  # pixels: a GIF compresses badly


def save_image(path: str, image: np.ndarray) -> None:
    """Write a PNG."""
    with written_beside(path) as beside:
        if not cv2.imwrite(beside, image):
            raise OSError(f'OpenCV could not write {path}')


def save_film(path: str, pictures: Iterable[np.ndarray], fps: float) -> None:
    """Write an .mp4 (MPEG-4 part 2, which players show but browsers do not) or a .gif (at most 1280 pixels wide).

    Args:
        path: the ending chooses.
        pictures: (H, W, 3) uint8, BGR, of one size; taken one by one.
        fps: pictures per second.

    Raises:
        ValueError: another ending, no picture, or pictures of several sizes.
        OSError: this OpenCV has no encoder for mp4.
    """
    ending = os.path.splitext(path)[1]
    if ending not in ('.mp4', '.gif'):
        raise ValueError(f'{path}: a film is .mp4 or .gif')
    pictures = iter(pictures)
    first = next(pictures, None)
    if first is None:
        raise ValueError(f'no pictures for {path}')
    alike = _of_one_size(path, itertools.chain([first], pictures), first.shape)
    with written_beside(path) as beside:
        (_write_gif if ending == '.gif' else _write_mp4)(beside, alike, fps, first.shape)


def _of_one_size(path: str, pictures: Iterable[np.ndarray], shape: tuple) -> Iterator[np.ndarray]:
    for number, picture in enumerate(pictures):
        if picture.shape != shape:
            raise ValueError(f'picture {number} for {path} has shape {picture.shape}, those before it {shape}')
        yield picture


def _write_mp4(path: str, pictures: Iterable[np.ndarray], fps: float, shape: tuple) -> None:
    height, width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2  # encoders want even sides
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*'mp4v'), fps, (width, height))
    try:
        if not writer.isOpened():
            raise OSError(f'this OpenCV ({cv2.__version__}) cannot write mp4, of {width} x {height} pixels; try gif')
        for picture in pictures:
            writer.write(np.pad(picture, ((0, height - shape[0]), (0, width - shape[1]), (0, 0)), 'edge'))
    finally:
        writer.release()


def _write_gif(path: str, pictures: Iterable[np.ndarray], fps: float, shape: tuple) -> None:
    width = min(shape[1], GIF_WIDTH)
    size = (width, round(shape[0] * width / shape[1]))
    images = (Image.fromarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA)[..., ::-1])
              for picture in pictures)
    next(images).save(path, save_all=True, append_images=images, duration=1000 / fps, loop=0)
