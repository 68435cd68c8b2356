"""Incomplete frames: which cameras they lack, and the message about it."""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

POLICIES = ('error', 'skip', 'mask')
JPEG, JPEG_END, SCAN = b'\xff\xd8', b'\xff\xd9', b'\xda'
TAIL = 256  # bytes in which the end marker of a JPEG is looked for first
NO_RECORD, NO_FILE, BROKEN = 'not in the info file', 'no image file', 'broken image'


def has_end(data: bytes) -> bool:
    """Whether a JPEG has its end marker, whatever follows it: some cameras pad their files.

    The marker counts only behind the headers, which may hold a preview with an end marker of its own.
    """
    if JPEG_END in data[-TAIL:]:
        return True
    position = len(JPEG)
    while (data[position:position + 1] == b'\xff' and data[position + 1:position + 2] != SCAN
           and position + 4 <= len(data)):
        position += 2 + int.from_bytes(data[position + 2:position + 4], 'big')
    return JPEG_END in data[position:]


def fault_of(path: str) -> str | None:
    """Why a file is not a complete image, judging by its first and last bytes; None if they show no fault.

    Addresses such as s3://... are not checked.
    """
    if '://' in path:
        return None
    try:
        with open(path, 'rb') as file:
            head = file.read(2)
            file.seek(max(-TAIL, -os.fstat(file.fileno()).st_size), os.SEEK_END)
            tail = file.read()
            if head == JPEG and JPEG_END not in tail:
                file.seek(0)
                return None if has_end(file.read()) else BROKEN
    except OSError:
        return NO_FILE
    return None if head else BROKEN


def find_gaps(entries: Sequence[dict], cameras: Sequence[str], path_of: Callable[[str, str], str],
              files: bool) -> dict[str, dict[str, str]]:
    """The cameras that frames lack.

    Args:
        entries: of an info file.
        cameras: those that a frame should have.
        path_of: (camera, ``img_path``) -> file.
        files: look at the image files too, at both ends of each.

    Returns:
        {sample token: {camera: why}}, in the order of ``entries``.
    """
    gaps = {entry['token']: {name: NO_RECORD for name in cameras if name not in entry['images']} for entry in entries}
    if files:
        images = [(entry['token'], name, path_of(name, entry['images'][name]['img_path']))
                  for entry in entries for name in cameras if 'img_path' in entry['images'].get(name, ())]
        with ThreadPoolExecutor(16) as threads:  # waits for the disk
            for (token, name, _), fault in zip(images, threads.map(fault_of, (path for *_, path in images))):
                if fault:
                    gaps[token][name] = fault
    return {token: found for token, found in gaps.items() if found}


def gaps_in_words(gaps: Mapping[str, Mapping[str, str]], number: int) -> str:
    """'2 of 40 frames are not whole (CAM_BACK: no image file 2), the first is sample x'."""
    counts = Counter((name, why) for found in gaps.values() for name, why in found.items())
    cameras = ', '.join(f'{name}: {why} {count}' for (name, why), count in counts.items())
    return f'{len(gaps)} of {number} frames are not whole ({cameras}), the first is sample {next(iter(gaps))}'


def all_cameras(entries: Iterable[dict]) -> list[str]:
    """Names of the cameras of all entries, in order of first appearance."""
    return list(dict.fromkeys(name for entry in entries for name in entry['images']))
