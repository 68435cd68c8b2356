"""Scoring detections with the nuScenes devkit, and the files that go to its server."""
from georope.evaluation.nuscenes_metric import NuScenesMetric
from georope.evaluation.results import CAMERA_META, write_results

__all__ = ['CAMERA_META', 'NuScenesMetric', 'write_results']
