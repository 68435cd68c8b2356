"""Frames of an mmdet3d v2 info file as pictures."""
from __future__ import annotations

import os
from collections.abc import Sequence

import cv2
import numpy as np

from georope.datasets.calibration import as_intrinsics, as_pose
from georope.datasets.info_file import required
from georope.errors import MissingInput
from georope.visualization.boxes import Boxes, yaw_matrices
from georope.visualization.draw import draw_frame, track_colour
from georope.visualization.strokes import Stroke


def lidar2global(entry: dict) -> np.ndarray:
    """(4, 4) float64 pose of the LiDAR in the global frame, from one entry of the file's ``data_list``."""
    where = f'sample {entry["token"]}: '
    lidar2ego = entry.get('lidar_points', {}).get('lidar2ego', np.eye(4))  # without LiDAR its frame is the ego frame
    return as_pose(required(entry, 'ego2global', where), where + 'ego2global') @ as_pose(lidar2ego, where + 'lidar2ego')


def ground_truth(entry: dict, categories: dict[str, int]) -> Boxes:
    """The annotated boxes that the devkit scores: of a detection class, with at least one LiDAR or radar point.

    Label -1 is none of the classes, whatever name the file has for it.

    Args:
        entry: one of the file's ``data_list``.
        categories: class name -> label, the file's ``metainfo['categories']``.
    """
    name_of = {label: name for name, label in categories.items() if label >= 0}
    where = f'sample {entry["token"]}: instance '
    for i, item in enumerate(entry.get('instances', ())):
        for key in ('bbox_label_3d', 'bbox_3d', 'velocity', 'num_lidar_pts', 'num_radar_pts'):
            required(item, key, f'{where}{i}: ')
    instances = [item for item in entry.get('instances', ()) if item['bbox_label_3d'] in name_of
                 and item['num_lidar_pts'] + item['num_radar_pts'] != 0]  # -1: unknown
    box = np.array([item['bbox_3d'] for item in instances], dtype=np.float64).reshape(-1, 7)
    return Boxes.build(box[:, :3], box[:, 3:6], yaw_matrices(box[:, 6]),
                       [name_of[item['bbox_label_3d']] for item in instances],
                       [item['velocity'] for item in instances])


def image_paths(entry: dict, data_root: str) -> list[tuple[str | None, list[str]]]:
    """For each camera of an entry the image that is there, or None, and where it was looked for.

    Image paths are relative to ``data_root/samples/CAMERA`` or to ``data_root``.
    """
    where, found = f'sample {entry["token"]}: ', []
    for name, camera in required(entry, 'images', where).items():
        path = required(camera, 'img_path', f'{where}{name}: ')
        tried = [os.path.join(data_root, 'samples', name, path), os.path.join(data_root, path)]
        found.append((next(filter(os.path.isfile, tried), None), tried))
    return found


def load_cameras(entry: dict, data_root: str) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
    """Original images (BGR), lidar2img (N, 4, 4) float64 and names of the cameras of one entry.

    Raises:
        MissingInput: an image is missing or not readable.
        InputError: the entry lacks a field.
    """
    images, matrices = [], []
    for (name, camera), (path, tried) in zip(entry['images'].items(), image_paths(entry, data_root)):
        where = f'sample {entry["token"]}, {name}: '
        image = cv2.imread(path) if path else None
        if image is None:
            raise MissingInput(f'{where}no readable image at {" or ".join(tried)}; check --data-root')
        images.append(image)
        matrices.append(as_intrinsics(required(camera, 'cam2img', where), f'{where}cam2img')
                        @ as_pose(required(camera, 'lidar2cam', where), f'{where}lidar2cam'))
    return images, np.stack(matrices), list(entry['images'])


def frame_results(token: str, results: dict[str, list]) -> list[dict]:
    """The boxes of a frame; an error where it has no list."""
    if token not in results:
        raise KeyError(f'the results have no sample {token}, but {len(results)} others: not made from this info file')
    return results[token]


def tails(entry: dict, past: Sequence[dict], results: dict[str, list], score_thr: float) -> list[Stroke]:
    """Where the tracks of a frame were before: on the ground, a dot for each frame.

    Args:
        entry: the frame, one of the file's ``data_list``.
        past: the frames of its scene before it, the oldest first.
        results: the ``results`` of a nuScenes tracking JSON. Nothing is drawn for boxes without ``tracking_id``.
        score_thr: tracks that are below this score now are left out.
    """
    pose, strokes = lidar2global(entry), []
    shown = {str(box['tracking_id']) for box in frame_results(entry['token'], results)
             if 'tracking_id' in box and box['tracking_score'] >= score_thr}
    trails = {track: [] for track in sorted(shown)}
    for frame in (*past, entry):
        for box in frame_results(frame['token'], results):
            if str(box.get('tracking_id')) in trails:
                x, y, z = box['translation']
                trails[str(box['tracking_id'])].append([x, y, z - box['size'][2] / 2])
    for track, trail in trails.items():
        points = (np.array(trail) - pose[:3, 3]) @ pose[:3, :3]
        strokes += [Stroke(points[i:i + 1], track_colour(track), 5) for i in range(len(points) - 1)]
        strokes += [Stroke(points, track_colour(track), 1)] if len(points) > 1 else []
    return strokes


def draw_info_frame(entry: dict, metainfo: dict, data_root: str, results: dict[str, list] | None = None,
                    score_thr: float = 0.25, past: Sequence[dict] = ()) -> np.ndarray:
    """Draw one frame of an info file: its ground truth and, if given, detections or tracks.

    Args:
        entry: one of the file's ``data_list``.
        metainfo: the file's ``metainfo``.
        data_root: see ``load_cameras``.
        results: the ``results`` of a nuScenes detection or tracking JSON (global frame).
        score_thr: detections and tracks below this score are left out.
        past: earlier frames of the scene, the oldest first, for the tails of the tracks.

    Returns:
        (H, W, 3) uint8, BGR.
    """
    token, predictions, strokes = entry['token'], None, []
    if results is not None:
        predictions = Boxes.from_results(frame_results(token, results), lidar2global(entry)).above(score_thr)
        strokes = tails(entry, past, results, score_thr)
    # The test split has no annotations; an annotated frame without objects has an empty list.
    truth = ground_truth(entry, metainfo['categories']) if 'instances' in entry else None
    images, matrices, names = load_cameras(entry, data_root)
    where = f'{entry["scene_name"]}, frame {entry["frame_idx"]}' if 'scene_name' in entry else metainfo['version']
    return draw_frame(images, matrices, predictions, truth, names, f'{where}   {token}', strokes=strokes)
