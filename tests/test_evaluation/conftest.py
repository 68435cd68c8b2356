"""Ground truth of real tables, as tables and as predictions."""
import pytest
from perfect_detector import Tables, open_truth


@pytest.fixture(scope='session')
def mini_val(shared, tmp_path_factory) -> Tables:
    """All 81 key frames of mini_val; seven of ten classes occur."""
    return open_truth(shared / 'data' / 'nuscenes_mini_val_tables', tmp_path_factory)


@pytest.fixture(scope='session')
def four_frames(shared, tmp_path_factory) -> Tables:
    """Four key frames of scene-0103, enough where the numbers do not matter."""
    return open_truth(shared / 'data' / 'nuscenes_scene0103', tmp_path_factory)
