"""Fixtures for the whole suite."""
import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ['OMP_NUM_THREADS'] = '1'  # before torch comes: sums depend on the number of threads
# The same examples in every run: what turns red is the change. --hypothesis-profile=default draws others.
settings.register_profile('georope', derandomize=True)
settings.load_profile('georope')


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with golden numbers and real nuScenes frames beside the clone; tests that need it skip without it."""
    path = Path(__file__).resolve().parents[2] / 'shared'
    if not path.is_dir():
        pytest.skip('no ../shared beside this clone')
    return path
