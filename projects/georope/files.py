"""Files that are whole or not there: written beside their final path, then renamed; read with a clear refusal."""
from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from georope.errors import InputError, MissingInput, UnreadableInput

LFS_POINTER = b'version https://git-lfs'


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


def writable_folder(path: str | os.PathLike) -> None:
    """Make the folder if need be and try to write into it: before the work, not after it.

    Raises:
        InputError: it cannot be made or written to; the message names it.
    """
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f'{path} cannot be written to ({error.strerror}): choose another folder for the output.'
                         ) from None


@contextlib.contextmanager
def atomic_open(path: str | os.PathLike) -> Iterator[IO[str]]:
    """A text file in UTF-8 that appears under its name only when it is complete."""
    with written_beside(path) as beside, open(beside, 'w', encoding='utf-8') as file:
        yield file


def no_content(path: str | os.PathLike) -> str | None:
    """Why a file has nothing in it to read: it is empty, or a Git LFS pointer; None where neither is so."""
    with open(path, 'rb') as file:
        head = file.read(len(LFS_POINTER))
    if not head:
        return 'is empty (0 bytes): copy or unpack it again'
    if head == LFS_POINTER:
        return 'is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`'
    return None


def read_json(path: str | os.PathLike) -> Any:
    """The content of a JSON file.

    Raises:
        MissingInput: no such file.
        UnreadableInput: it cannot be read, is empty, a Git LFS pointer, truncated or no JSON; the message names it.
    """
    try:
        reason = no_content(path)
        if reason is None:
            with open(path, encoding='utf-8-sig') as file:
                return json.load(file)
    except FileNotFoundError:
        raise MissingInput(f'{path} does not exist.') from None
    except OSError as error:
        reason = f'cannot be read: {error.strerror}'
    except RecursionError:
        reason = 'is JSON of too many levels: export it again'
    except json.JSONDecodeError as error:
        cut = not error.doc[error.pos:].strip() or error.msg.startswith('Unterminated string')
        reason = (f'{"is cut off" if cut else "is no JSON"} at line {error.lineno}, column {error.colno} '
                  f'({error.msg}): copy or export it again')
    except UnicodeDecodeError as error:
        reason = f'is no text in UTF-8 ({error}): export it again'
    except ValueError as error:  # e.g. an integer of thousands of digits
        reason = f'is no JSON ({error}): export it again'
    raise UnreadableInput(f'{path} {reason}.')
