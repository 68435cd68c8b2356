"""Errors that a user's file caused. A tool shows them in one line, and everything else as the bug that it is."""
import functools
import os
import sys
from collections.abc import Callable

TRACEBACK = 'GEOROPE_TRACEBACK'  # environment variable: 1 shows the traceback of an InputError too


class InputError(ValueError):
    """A file, table, record or option that cannot be used; the message names it and says what to do."""


class MissingInput(InputError, FileNotFoundError):
    """A file that is not there."""


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
            sys.exit(str(error))

    return run
