"""nuScenes and similar data sets as camera frames: info files, datasets, transforms, streams."""
from . import transforms
from .camera_dataset import CameraDataset
from .nuscenes_dataset import NuScenesCameraDataset
from .samplers import SceneBatchSampler, StreamBatchSampler, StreamIndex
from .window_dataset import CameraWindowDataset, NuScenesWindowDataset

__all__ = ['CameraDataset', 'CameraWindowDataset', 'StreamIndex', 'NuScenesCameraDataset', 'NuScenesWindowDataset',
           'SceneBatchSampler', 'StreamBatchSampler', 'transforms']
