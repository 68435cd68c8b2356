"""Fixtures for the whole suite."""
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

os.environ['OMP_NUM_THREADS'] = '1'  # before torch comes: sums depend on the number of threads
# The same examples in every run: what turns red is the change. --hypothesis-profile=default draws others.
settings.register_profile('georope', derandomize=True)
settings.load_profile('georope')


@pytest.fixture(scope='session')
def golden_folder() -> Path:
    """The golden numbers of the public PETR and StreamPETR code, see the README there."""
    return Path(__file__).with_name('golden')


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with real nuScenes frames beside the clone, out of it for their licence; without it a test skips."""
    path = Path(__file__).resolve().parents[2] / 'shared'
    if not path.is_dir():
        pytest.skip('needs real nuScenes frames (../shared beside this clone), which may not be part of it')
    return path


def pytest_terminal_summary(terminalreporter) -> None:
    """One line per reason to skip: how many tests, and why."""
    reasons = Counter(report.longrepr[2].removeprefix('Skipped: ')
                      for report in terminalreporter.stats.get('skipped', ()))
    for reason, count in reasons.items():
        terminalreporter.write_line(f'{count} tests skipped: {reason}')
