"""A synthetic street world written as genuine nuScenes v1.0-mini files."""
from .maker import make_toy_nuscenes
from .options import EDGE_CASES

__all__ = ['EDGE_CASES', 'make_toy_nuscenes']
