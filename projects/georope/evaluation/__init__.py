"""Scoring detections and tracks with the nuScenes devkit, and the files that go to its server."""
from georope.evaluation.camera_metric import CameraMetric
from georope.evaluation.devkit import evaluate_results, ground_truth_results, open_tables
from georope.evaluation.nuscenes_metric import NuScenesMetric
from georope.evaluation.results import write_results
from georope.evaluation.tracker import Tracker, track_results
from georope.evaluation.tracking_eval import evaluate_tracks, tracking_summary, tracking_table

__all__ = ['CameraMetric', 'NuScenesMetric', 'Tracker', 'evaluate_results', 'evaluate_tracks', 'ground_truth_results',
           'open_tables', 'track_results', 'tracking_summary', 'tracking_table', 'write_results']
