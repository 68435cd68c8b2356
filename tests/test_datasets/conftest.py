import copy

import pytest
from mmengine.registry import init_default_scope
from small_nuscenes import CLASSES, write_nuscenes

import georope  # noqa: F401
from georope.datasets import NuScenesCameraDataset
from georope.datasets.converter import create_infos
from georope.datasets.info_file import load_infos, save_infos


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope('mmdet3d')


@pytest.fixture(scope='session')
def small_root(tmp_path_factory):
    """Two scenes, both of the split train, with images and an info file."""
    root = write_nuscenes(tmp_path_factory.mktemp('small'), scenes=[('scene-0061', 3), ('scene-0553', 2)])
    create_infos(root, 'v1.0-mini')
    return root


@pytest.fixture
def infos(small_root):
    """A copy of the info file of :func:`small_root`, to be changed."""
    return copy.deepcopy(load_infos(small_root / 'nuscenes_infos_train.pkl'))


@pytest.fixture
def build(small_root, tmp_path):
    """Make a dataset of (changed) infos of :func:`small_root`; ``serialize_data`` costs a garbage collection."""

    def dataset(infos, **kwargs):
        file = save_infos(infos, tmp_path / 'infos.pkl')
        settings = dict(data_root=str(small_root), metainfo=dict(classes=CLASSES), ann_file=str(file),
                        serialize_data=False)
        return NuScenesCameraDataset(**{**settings, **kwargs})

    return dataset
