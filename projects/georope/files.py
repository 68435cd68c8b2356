"""Files that are whole or not there: written beside their place, then renamed."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def written_beside(path: str | os.PathLike) -> Iterator[str]:
    """Gives a name in the same folder, with the same ending, that is renamed to ``path`` when all went well.

    The folder is made if need be.
    """
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    beside = os.path.join(folder, f'.{os.getpid()}.{name}')
    try:
        yield beside
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.remove(beside)


@contextlib.contextmanager
def atomic_open(path: str | os.PathLike) -> Iterator[IO[str]]:
    """A text file in UTF-8 that appears under its name only when it is complete."""
    with written_beside(path) as beside, open(beside, 'w', encoding='utf-8') as file:
        yield file
