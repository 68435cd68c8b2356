"""Transforms of camera frames. All of them keep ``lidar2img`` exactly right."""
from .bev_aug import BEVAug
from .formatting import PackCameraInputs
from .image_aug import ImageAug
from .loading import LoadCameraAnnotations, LoadCameraImages

__all__ = ['BEVAug', 'ImageAug', 'LoadCameraAnnotations', 'LoadCameraImages', 'PackCameraInputs']
