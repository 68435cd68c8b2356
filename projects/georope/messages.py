"""Pieces of messages."""
from collections.abc import Sequence


def some(names: Sequence[str], number: int = 5) -> str:
    """The first names, and dots where there are more."""
    return ', '.join(names[:number]) + (', ...' if len(names) > number else '')
