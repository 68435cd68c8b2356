"""Fixtures for the whole suite."""
from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with golden numbers and real nuScenes frames beside the clone; tests that need it skip without it."""
    path = Path(__file__).resolve().parents[2] / 'shared'
    if not path.is_dir():
        pytest.skip('no ../shared beside this clone')
    return path
