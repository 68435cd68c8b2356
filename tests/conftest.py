"""Fixtures for the whole suite."""
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with golden numbers and real nuScenes frames beside the clone; tests that need it skip without it."""
    path = ROOT.parent / 'shared'
    if not path.is_dir():
        pytest.skip('no ../shared beside this clone')
    return path
