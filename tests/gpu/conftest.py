"""The GPU suite: part of the whole suite where there is CUDA, one skipped test and one line elsewhere.

``GEOROPE_TEST_DEVICE=cpu pytest tests/gpu`` runs the same tests without a GPU. That proves that they run, not what they
are for: comparing a device with itself says nothing of kernels, TF32 or half precision on a GPU.
"""
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / 'test_models'))  # model_factory

NAME = os.environ.get('GEOROPE_TEST_DEVICE') or ('cuda' if torch.cuda.is_available() else None)


def pytest_itemcollected(item):
    item.add_marker('gpu')


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(items):
    """Without a GPU one skipped test stands for all of them."""
    here = [item for item in items if item.get_closest_marker('gpu')]
    if here and NAME is None:
        here[0].add_marker(pytest.mark.skip(reason=f'tests/gpu needs a CUDA device: {len(here)} tests not run'))
        items[:] = [item for item in items if item not in here[1:]]


@pytest.fixture(scope='session')
def device() -> torch.device:
    return torch.device(NAME)


@pytest.fixture(params=['highest', 'high'], ids=['float32', 'tf32'])
def precision(request):
    """Matrix products and convolutions in float32 (highest) and in TF32 (high)."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(request.param)
    torch.backends.cudnn.allow_tf32 = request.param == 'high'
    yield request.param
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.fixture
def float32():
    """No TF32, which cuDNN's convolutions use unless told otherwise."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
