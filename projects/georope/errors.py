"""Errors that a user's file caused. A tool shows them in one line; any other error keeps its traceback."""
import functools
import os
import sys
from collections.abc import Callable, Sequence

TRACEBACK = 'GEOROPE_TRACEBACK'  # environment variable: 1 shows the traceback of an InputError too
SHOWN = 10  # faults in a message


class InputError(ValueError):
    """A file, table, record or option that cannot be used; the message names it and says what to do."""


class MissingInput(InputError, FileNotFoundError):
    """A file that does not exist."""


class UnreadableInput(InputError, OSError):
    """A file that exists but cannot be read as what it should be."""


def refuse(where: str, faults: Sequence[str]) -> None:
    """An InputError with the first ten faults, each a line of its own, and their number; nothing without faults."""
    if len(faults) == 1:
        raise InputError(faults[0])
    if faults:
        head = f'{where}: {len(faults)} faults' + (f', {SHOWN} of them:' if len(faults) > SHOWN else ':')
        raise InputError('\n  '.join([head, *faults[:SHOWN]]))


def one_line_errors(main: Callable[[], None]) -> Callable[[], None]:
    """For a tool's ``main``: InputError, and an OSError that names a file, end it with the message and status 1."""

    @functools.wraps(main)
    def run() -> None:
        try:
            main()
        except (InputError, OSError) as error:
            from_user = isinstance(error, InputError) or error.filename is not None
            if not from_user or os.environ.get(TRACEBACK, '0') not in ('', '0'):
                raise
            sys.exit(_message(error))

    return run


def _message(error: Exception) -> str:
    """Its text; of an error of a worker of a data loader, which comes with its traceback, the text of the original."""
    text, kind = str(error), f'{type(error).__module__}.{type(error).__qualname__}: '
    return text.rpartition(kind)[2].strip() if text.startswith('Caught ') and kind in text else text
