"""Fixtures for the whole suite."""
import os
from pathlib import Path

import pytest

os.environ['OMP_NUM_THREADS'] = '1'  # before torch comes: sums depend on the number of threads


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with golden numbers and real nuScenes frames beside the clone; tests that need it skip without it."""
    path = Path(__file__).resolve().parents[2] / 'shared'
    if not path.is_dir():
        pytest.skip('no ../shared beside this clone')
    return path
