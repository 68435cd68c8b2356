"""Transforms of camera frames. All keep ``lidar2img`` exactly right; PerturbCameras makes it wrong on purpose."""
from .bev_aug import BEVAug
from .formatting import PackCameraInputs
from .image_aug import ImageAug
from .loading import LoadCameraAnnotations, LoadCameraImages
from .perturb import PerturbCameras

__all__ = ['BEVAug', 'ImageAug', 'LoadCameraAnnotations', 'LoadCameraImages', 'PackCameraInputs', 'PerturbCameras']
