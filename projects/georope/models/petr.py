"""The PETR detector: backbone, neck, head (PETR, arXiv 2203.05625)."""
from __future__ import annotations

from mmdet3d.models.detectors import Base3DDetector
from mmdet3d.structures import Det3DDataSample
from torch import Tensor

from georope.registry import MODELS


@MODELS.register_module()
class PETR(Base3DDetector):
    """Camera-only 3D detector on one frame; any batch size and number of cameras.

    Args:
        img_backbone: image backbone; its levels go to the neck.
        img_neck: feature pyramid.
        pts_bbox_head: head; it reads one level.
        data_preprocessor: ``FramePreprocessor``, or mmdet3d's.
        position_level: the level the head reads, 0 for the neck's finest.
        train_cfg: None; mmdet3d's ``init_model`` says so, whatever the model.
    """

    def __init__(self,
                 img_backbone: dict,
                 img_neck: dict,
                 pts_bbox_head: dict,
                 data_preprocessor: dict | None = None,
                 position_level: int = 0,
                 train_cfg: None = None,
                 init_cfg: dict | None = None) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.img_backbone = MODELS.build(img_backbone)
        self.img_neck = MODELS.build(img_neck)
        self.pts_bbox_head = MODELS.build(pts_bbox_head)
        self.position_level = position_level

    def extract_feat(self, batch_inputs: dict) -> Tensor:
        """Features of all images.

        Args:
            batch_inputs: ``imgs`` (B, N, 3, height, width), normalised and padded.

        Returns:
            (B, N, C, H, W).

        Raises:
            ValueError: if the feature map does not have the stride that the head counts with.
        """
        imgs = batch_inputs['imgs']
        features = self.img_neck(self.img_backbone(imgs.flatten(0, 1)))[self.position_level]
        stride = self.pts_bbox_head.stride
        expected = tuple(-(-size // stride) for size in imgs.shape[-2:])
        if features.shape[-2:] != expected:
            raise ValueError(f'pts_bbox_head.stride={stride} wants a feature map of {expected} for images of '
                             f'{tuple(imgs.shape[-2:])}, but level {self.position_level} of img_neck has '
                             f'{tuple(features.shape[-2:])}: check stride, position_level and out_indices')
        return features.unflatten(0, imgs.shape[:2])

    def loss(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Losses of a batch, see ``PETRHead.loss``."""
        return self.pts_bbox_head.loss(self.extract_feat(batch_inputs), batch_data_samples)

    def predict(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample],
                **kwargs) -> list[Det3DDataSample]:
        """The samples with ``pred_instances_3d``, see ``PETRHead.predict``."""
        results = self.pts_bbox_head.predict(self.extract_feat(batch_inputs), batch_data_samples)
        return self.add_pred_to_datasample(batch_data_samples, results)

    def _forward(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Raw predictions, see ``PETRHead.forward``."""
        return self.pts_bbox_head(self.extract_feat(batch_inputs), [s.metainfo for s in batch_data_samples])
