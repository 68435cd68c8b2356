"""Fixtures of the made-up rig."""
import numpy as np
import pytest
from made_up_rig import HEIGHT, WIDTH, camera


@pytest.fixture
def front() -> np.ndarray:
    return camera(0)


@pytest.fixture
def blank() -> np.ndarray:
    return np.zeros((HEIGHT, WIDTH, 3), np.uint8)
