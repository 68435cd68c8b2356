"""nuScenes as camera frames: info files, dataset, transforms."""
from . import transforms
from .nuscenes_dataset import NuScenesCameraDataset

__all__ = ['NuScenesCameraDataset', 'transforms']
