"""nuScenes as camera frames: info files, datasets, transforms, streams."""
from . import transforms
from .nuscenes_dataset import NuScenesCameraDataset
from .samplers import LaneIndex, SceneBatchSampler, StreamBatchSampler
from .window_dataset import NuScenesWindowDataset

__all__ = ['LaneIndex', 'NuScenesCameraDataset', 'NuScenesWindowDataset', 'SceneBatchSampler', 'StreamBatchSampler',
           'transforms']
