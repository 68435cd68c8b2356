"""Scoring detections with the nuScenes devkit, and the files that go to its server."""
from georope.evaluation.devkit import evaluate_results, ground_truth_results, open_tables
from georope.evaluation.nuscenes_metric import NuScenesMetric
from georope.evaluation.results import write_results

__all__ = ['NuScenesMetric', 'evaluate_results', 'ground_truth_results', 'open_tables', 'write_results']
