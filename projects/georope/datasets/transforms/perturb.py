"""Other rigs and faulty calibrations, for tests of robustness."""
import zlib
from typing import NamedTuple

import numpy as np
from mmcv.transforms import BaseTransform
from scipy.spatial.transform import Rotation, Slerp

from georope.registry import TRANSFORMS


class Kind(NamedTuple):
    """The unit of severity of a kind of perturbation, and useful severities (our choice)."""
    unit: str
    severities: tuple[float, ...]
    smallest: float = 0.0
    largest: float = np.inf


KINDS = dict(
    zoom=Kind('focal length, relative change', (0.25, 0.5, 1.0), smallest=np.nextafter(-1, 0)),
    rotation=Kind('degrees, standard deviation per axis', (0.5, 1.0, 2.0, 4.0)),
    translation=Kind('metres, standard deviation per axis', (0.1, 0.2, 0.5, 1.0)),
    rig_shift=Kind('metres', (0.5, 1.0, 2.0, 4.0)),
    dropout=Kind('black cameras', (1.0, 2.0, 3.0)),
    delay=Kind('key frames', (0.1, 0.25, 0.5, 1.0), largest=1.0))


@TRANSFORMS.register_module()
class PerturbCameras(BaseTransform):
    """Change the cameras of a frame, or their calibration. Belongs between ImageAug and LoadCameraImages of a test.

    The kinds, and the meaning of ``severity`` for each:

    - ``zoom``: focal lengths times ``1 + severity`` about the middle of the image, in pixels and matrices alike: the
      calibration stays right, only the lens changes. Objects that leave the image stay in the ground truth, so that
      recall falls for every model. A negative severity zooms out: nothing was recorded beyond the image, so the border
      is black.
    - ``rotation``, ``translation``: the calibration of each camera has an error: a rotation about its centre (normal
      rotation vector, degrees) or a shift (normal, metres), drawn anew in each frame; ``severity`` is the standard
      deviation per axis. The images stay.
    - ``rig_shift``: all cameras stand ``severity`` metres further in the LiDAR frame, in a direction that depends on
      ``seed`` alone. Calibration and pose stay right: it is the origin of the LiDAR frame that moves, as between two
      vehicles. (Were the calibration wrong instead, boxes would merely be off by the shift.)
    - ``dropout``: the images of ``severity`` cameras, drawn in each frame, are black; calibrations stay. They are black
      and not left out, because models and batches may rely on the number of cameras, and a dead camera still has its
      calibration.
    - ``delay``: the pose of the rig is late. In nuScenes a camera's position on the vehicle is constant in a scene
      and cannot be late, but the vehicle moves. So each camera is calibrated where it was ``severity`` key frames ago
      (1: at the key frame before, half a second in nuScenes; between them poses are interpolated), while image, LiDAR
      frame and its pose are current. The first frame of a scene has no earlier one and stays as it is.

    Draws depend on ``seed``, kind, sample token and camera only, not on the severity, which scales them: ``dropout``
    blackens at 2 what it does at 1 and one more. Severity 0 changes nothing, to the bit.

    Args:
        kind: One of :data:`KINDS`.
        severity: How much, in the kind's unit.
        seed: Of the draws.

    Changes ``lidar2img`` and ``lidar2cam`` (N, 4, 4); ``zoom`` also ``cam2img`` and ``image_plans``, ``rig_shift``
    ``lidar2global`` (4, 4), ``dropout`` only ``image_plans``.

    Raises:
        ValueError: An unknown kind or impossible severity, more black cameras than there are, another position in
            the pipeline, or a frame with labels, which would have to change too.
    """

    def __init__(self, kind: str, severity: float, seed: int = 0) -> None:
        if kind not in KINDS:
            raise ValueError(f'PerturbCameras: kind={kind!r}, choose one of {", ".join(KINDS)}.')
        of = KINDS[kind]
        if not (np.isfinite(severity) and of.smallest <= severity <= of.largest):
            raise ValueError(f'PerturbCameras: severity={severity} of {kind} ({of.unit}) must lie between '
                             f'{of.smallest:g} and {of.largest:g}.')
        if kind == 'dropout' and severity != int(severity):
            raise ValueError(f'PerturbCameras: severity={severity} of dropout must be a whole number of cameras.')
        self.kind, self.severity, self.seed = kind, severity, seed

    def transform(self, results: dict) -> dict:
        if 'image_plans' not in results or 'gt_bboxes_3d' in results:
            raise ValueError(f'sample {results["token"]}: PerturbCameras belongs between georope.ImageAug and '
                             'georope.LoadCameraImages of a test pipeline, which loads no annotations.')
        if self.severity:
            getattr(self, f'_{self.kind}')(results)
            results['lidar2img'] = results['cam2img'] @ results['lidar2cam']
        return results

    def _draws(self, *names: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32('/'.join((self.kind, *names)).encode())])

    def _vectors(self, results: dict) -> np.ndarray:
        """(N, 3), one normal vector per camera."""
        return self.severity * np.stack(
            [self._draws(results['token'], camera).normal(size=3) for camera in results['cam_names']])

    def _zoom(self, results: dict) -> None:
        factor, cam2img, plans = 1 + self.severity, results['cam2img'].copy(), list(results['image_plans'])
        for i, plan in enumerate(plans):
            # About the middle of the crop, where flip and rotation change nothing; a crop begins at a whole pixel.
            x, y = (round(factor * (start + size / 2) - size / 2) for start, size in zip(plan.crop, plan.size[::-1]))
            plans[i] = plan._replace(resize=factor * plan.resize, crop=(x, y))
            cam2img[i, :3] = plans[i].matrix @ np.linalg.inv(plan.matrix) @ cam2img[i, :3]
        results.update(cam2img=cam2img, image_plans=plans)

    def _rotation(self, results: dict) -> None:
        turns = np.tile(np.eye(4), (len(results['cam_names']), 1, 1))
        turns[:, :3, :3] = Rotation.from_rotvec(np.radians(self._vectors(results))).as_matrix()
        results['lidar2cam'] = turns @ results['lidar2cam']

    def _translation(self, results: dict) -> None:
        results['lidar2cam'] = results['lidar2cam'].copy()
        results['lidar2cam'][:, :3, 3] += self._vectors(results)

    def _rig_shift(self, results: dict) -> None:
        direction = self._draws().normal(size=3)
        back = np.eye(4)
        back[:3, 3] = -self.severity * direction / np.linalg.norm(direction)
        for key in ('lidar2cam', 'lidar2global'):
            results[key] = results[key] @ back

    def _dropout(self, results: dict) -> None:
        cameras, plans = results['cam_names'], list(results['image_plans'])
        if self.severity > len(cameras):
            raise ValueError(f'sample {results["token"]}: {self.severity:g} of {len(cameras)} cameras cannot be black.')
        order = np.argsort([self._draws(results['token'], camera).random() for camera in cameras])
        for i in order[:int(self.severity)]:
            # A crop far beside the image.
            beside = sum(plans[i].size) + int(np.ceil(plans[i].resize * sum(plans[i].source)))
            plans[i] = plans[i]._replace(crop=(beside, beside))
        results['image_plans'] = plans

    def _delay(self, results: dict) -> None:
        if not results['prev_exists']:
            return
        now, former = results['lidar2global'], results['prev_lidar2global']
        turn = Slerp([0, 1], Rotation.from_matrix([now[:3, :3], former[:3, :3]]))
        late = np.eye(4)
        late[:3, :3] = turn(self.severity).as_matrix()
        late[:3, 3] = (1 - self.severity) * now[:3, 3] + self.severity * former[:3, 3]
        results['lidar2cam'] = results['lidar2cam'] @ np.linalg.inv(late) @ now

    def __repr__(self) -> str:
        return f'{type(self).__name__}(kind={self.kind!r}, severity={self.severity}, seed={self.seed})'
