"""Frames of an mmdet3d v2 info file as pictures."""
from __future__ import annotations

import os

import cv2
import numpy as np

from georope.datasets.calibration import as_intrinsics, as_pose
from georope.visualization.boxes import Boxes, yaw_matrices
from georope.visualization.draw import draw_frame


def lidar2global(entry: dict) -> np.ndarray:
    """(4, 4) float64 pose of the LiDAR in the global frame, from one entry of the file's ``data_list``."""
    where = f'sample {entry["token"]}: '
    lidar2ego = entry.get('lidar_points', {}).get('lidar2ego', np.eye(4))  # without LiDAR its frame is the ego frame
    return as_pose(entry['ego2global'], where + 'ego2global') @ as_pose(lidar2ego, where + 'lidar2ego')


def ground_truth(entry: dict, categories: dict[str, int]) -> Boxes:
    """The annotated boxes that the devkit scores: of a detection class, with at least one LiDAR or radar point.

    Args:
        entry: one of the file's ``data_list``.
        categories: class name -> label, the file's ``metainfo['categories']``.
    """
    name_of = {label: name for name, label in categories.items()}
    instances = [item for item in entry.get('instances', ()) if item['bbox_label_3d'] in name_of
                 and item['num_lidar_pts'] + item['num_radar_pts'] > 0]
    box = np.array([item['bbox_3d'] for item in instances], dtype=np.float64).reshape(-1, 7)
    return Boxes.build(box[:, :3], box[:, 3:6], yaw_matrices(box[:, 6]),
                       [name_of[item['bbox_label_3d']] for item in instances],
                       [item['velocity'] for item in instances])


def load_cameras(entry: dict, data_root: str) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
    """Original images (BGR), lidar2img (N, 4, 4) float64 and names of the cameras of one entry.

    Image paths are relative to ``data_root/samples/CAMERA`` or to ``data_root``.

    Raises:
        FileNotFoundError: an image is missing or not readable.
    """
    images, matrices = [], []
    for name, camera in entry['images'].items():
        paths = [os.path.join(data_root, 'samples', name, camera['img_path']),
                 os.path.join(data_root, camera['img_path'])]
        found = [path for path in paths if os.path.exists(path)]
        image = cv2.imread(found[0]) if found else None
        if image is None:
            raise FileNotFoundError(f'sample {entry["token"]}, {name}: no readable image at {" or ".join(paths)}; '
                                    'check --data-root')
        images.append(image)
        where = f'sample {entry["token"]}, {name}'
        matrices.append(as_intrinsics(camera['cam2img'], f'{where}: cam2img')
                        @ as_pose(camera['lidar2cam'], f'{where}: lidar2cam'))
    return images, np.stack(matrices), list(entry['images'])


def draw_info_frame(entry: dict, metainfo: dict, data_root: str, results: dict[str, list] | None = None,
                    score_thr: float = 0.25) -> np.ndarray:
    """Draw one frame of an info file: its ground truth and, if given, detections.

    Args:
        entry: one of the file's ``data_list``.
        metainfo: the file's ``metainfo``.
        data_root: see ``load_cameras``.
        results: the ``results`` of a nuScenes detection JSON (global frame).
        score_thr: detections below this score are left out.

    Returns:
        (H, W, 3) uint8, BGR.
    """
    token = entry['token']
    if results is not None and token not in results:
        raise KeyError(f'the results have no sample {token}, but {len(results)} others: not made from this info file')
    predictions = None if results is None else Boxes.from_results(results[token], lidar2global(entry)).above(score_thr)
    # The test split has no annotations; an annotated frame without objects has an empty list.
    truth = ground_truth(entry, metainfo['categories']) if 'instances' in entry else None
    images, matrices, names = load_cameras(entry, data_root)
    where = f'{entry["scene_name"]}, frame {entry["frame_idx"]}' if 'scene_name' in entry else metainfo['version']
    return draw_frame(images, matrices, predictions, truth, names, f'{where}   {token}')
