"""Ground truth of real and synthetic tables, as tables and as predictions."""
import logging

import pytest
from mmengine.logging import MMLogger
from perfect_detector import Tables, open_truth

from georope.toy import make_toy_nuscenes


@pytest.fixture(scope='session')
def mini_val(shared, tmp_path_factory) -> Tables:
    """All 81 key frames of mini_val; seven of ten classes occur."""
    return open_truth(shared / 'data' / 'nuscenes_mini_val_tables', tmp_path_factory)


@pytest.fixture(scope='session')
def toy(tmp_path_factory) -> Tables:
    """Seven synthetic frames of all ten classes: one empty, some velocities unknown, coordinates far from 0."""
    root = make_toy_nuscenes(
        tmp_path_factory.mktemp('toy') / 'set', scenes=(0, 1), samples_per_scene=7, image_size=(90, 160), num_cameras=1,
        edge_cases=('empty_frame', 'single_observation', 'zero_points', 'far_origin'), progress=False)
    return open_truth(root, tmp_path_factory)


@pytest.fixture
def log():
    """What the metric says."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    yield lambda: '\n'.join(records)
    logger.removeHandler(handler)
