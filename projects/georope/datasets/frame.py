"""What a frame of a dataset holds: the one description that datasets, transforms and models agree on."""
from __future__ import annotations

from typing import TypedDict

import numpy as np
from mmdet3d.structures import LiDARInstance3DBoxes


class CameraImage(TypedDict):
    """One camera of a frame; None where the info file lacks it."""

    img_path: str
    sample_data_token: str | None
    timestamp: float | None  # seconds since the first frame of the scene in the file
    height: int | None  # pixels of the file's image
    width: int | None
    cam2ego: np.ndarray | None  # (4, 4) float64, metres
    ego2global: np.ndarray | None  # (4, 4) float64: the ego pose when this camera exposed


class Annotations(TypedDict, total=False):
    """The objects of a frame; labels count in the order of ``metainfo['classes']``.

    The last four are lists over cameras. They exist only if the info file has ``cam_instances``.
    """

    gt_bboxes_3d: LiDARInstance3DBoxes  # (n, 9) LiDAR frame, metres; velocity in m/s, NaN where unknown
    gt_labels_3d: np.ndarray  # (n,) int64
    gt_bboxes: list[np.ndarray]  # (m, 4) x1, y1, x2, y2, pixels
    gt_bboxes_labels: list[np.ndarray]  # (m,) int64
    centers_2d: list[np.ndarray]  # (m, 2) pixels, where the centre of the 3D box appears
    depths: list[np.ndarray]  # (m,) metres


class CameraFrame(TypedDict, total=False):
    """A frame as :class:`georope.datasets.CameraDataset` gives it to the pipeline; N cameras.

    A transform may change every matrix, but keeps ``lidar2img = cam2img @ lidar2cam`` true for the images it leaves.
    ``PackCameraInputs`` turns a frame into what a model takes: images, and a ``Det3DDataSample`` with the rest as
    metainfo.

    ``lidar2global`` has one name in this code. The metainfo holds the same matrix as ``ego_pose`` too: the name that
    StreamPETR gives it, and that heads and configs read. (In nuScenes' table ``ego_pose``, and as ``ego2global`` here,
    it is the pose of the vehicle; where there is no LiDAR both are equal.)
    """

    token: str  # sample token
    scene_token: str  # '' in files that lack it: then each frame is a scene of its own
    frame_idx: int  # position in its scene
    sample_idx: int  # index in this dataset
    prev_exists: bool  # the frame before it in this dataset is that before it in the scene, and its slot goes on
    timestamp: float  # seconds since the first frame of the scene in the file
    cam_names: list[str]  # (N)
    img_path: list[str]  # (N)
    images: dict[str, CameraImage]  # in the order of cam_names
    cam2img: np.ndarray  # (N, 4, 4) float64
    lidar2cam: np.ndarray  # (N, 4, 4) float64, metres
    lidar2img: np.ndarray  # (N, 4, 4) float64
    ego2global: np.ndarray  # (4, 4) float64, metres
    lidar2ego: np.ndarray  # (4, 4) float64; the identity where there is no LiDAR
    lidar2global: np.ndarray  # (4, 4) float64, LiDAR -> global frame: ego2global @ lidar2ego, BEV augmentation included
    prev_lidar2global: np.ndarray  # of the frame before, only where prev_exists
    ann_info: Annotations  # only in training
    missing_cameras: list[str]  # of cam_names, those hidden as padding; only with incomplete='mask'
    # Added by ImageAug and LoadCameraImages.
    image_plans: list  # (N) ImagePlan
    img: list[np.ndarray]  # (N) of (h, w, 3) uint8, BGR
    img_shape: list[tuple[int, int]]  # (N) height, width of the valid part of each image; (0, 0) of missing cameras
    ori_shape: list[tuple[int, int]]  # (N) height, width of the files' images
