"""From a frame to the input of a model."""
from collections.abc import Sequence

from mmdet3d.datasets.transforms import Pack3DDetInputs
from mmengine.structures import InstanceData

from georope.registry import TRANSFORMS

META_KEYS = ('token', 'sample_idx', 'scene_token', 'frame_idx', 'prev_exists', 'timestamp', 'lidar2img', 'lidar2cam',
             'cam2img', 'lidar2global', 'ego_pose', 'img_path', 'filename', 'img_shape', 'ori_shape', 'cam_names',
             'missing_cameras', 'box_type_3d', 'box_mode_3d')


@TRANSFORMS.register_module()
class PackCameraInputs(Pack3DDetInputs):
    """Pack a frame.

    Returns ``inputs``: ``img`` (N, 3, h, w), uint8 if the images are; ``data_samples``: a Det3DDataSample with the
    metainfo of ``meta_keys`` (``ego_pose`` equals ``lidar2global``, see ``CameraFrame``), and for labelled frames
    ``gt_instances_3d`` (``bboxes_3d``, ``labels_3d``) and ``gt_cameras``, a list over cameras of InstanceData:
    ``bboxes`` (m, 4), ``labels`` (m), ``centers_2d`` (m, 2), ``depths`` (m). ``DataSample.to`` does not move this
    list: whoever uses it does.
    """

    def __init__(self,
                 keys: Sequence[str] = ('img', 'gt_bboxes_3d', 'gt_labels_3d'),
                 meta_keys: Sequence[str] = META_KEYS) -> None:
        super().__init__(keys=tuple(keys), meta_keys=tuple(meta_keys))

    def pack_single_results(self, results: dict) -> dict:
        if 'lidar2global' in results:
            results['ego_pose'] = results['lidar2global']
        packed = super().pack_single_results(results)
        if 'gt_bboxes' in results:  # tensors by now
            packed['data_samples'].gt_cameras = [
                InstanceData(bboxes=bboxes, labels=labels, centers_2d=centers, depths=depths)
                for bboxes, labels, centers, depths in zip(results['gt_bboxes'], results['gt_bboxes_labels'],
                                                           results['centers_2d'], results['depths'])
            ]
        return packed
