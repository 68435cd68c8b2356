"""A synthetic street world written as genuine nuScenes v1.0-mini files.

Properties of the data:

- Scenes carry the devkit's own mini_train / mini_val names, so there are at most 8 + 2. For more data raise the number
  of samples per scene.
- Cameras fire up to 47 ms before the LiDAR, and the ego car moves meanwhile: every image is drawn from the camera's own
  ego pose, with the objects where they are at that moment. Annotations hold at LiDAR time, as in nuScenes.
- Objects stand, walk straight ahead at constant speed, or follow the gently curved street at constant speed. All within
  55 m of the ego car are annotated, hidden ones too; visibility is counted in pixels.
- `num_lidar_pts` equals the number of points in the box in the LiDAR file; `num_radar_pts` is 0, there is no radar.
- Between key frames there is one sweep record per sensor. LiDAR sweeps have files; camera sweeps have none, as in
  nuScenes' key frame download: neither the devkit's loader nor mmdet3d's converter opens them.
- Pixel (row, column) covers [column, column + 1) x [row, row + 1); its centre projects to column + 0.5, row + 0.5.
"""
from .maker import make_toy_nuscenes
from .options import EDGE_CASES

__all__ = ['EDGE_CASES', 'make_toy_nuscenes']
