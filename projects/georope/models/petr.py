"""The PETR detector: backbone, neck, head (PETR, arXiv 2203.05625)."""
from __future__ import annotations

from collections.abc import Sequence

from mmdet3d.models.detectors import Base3DDetector
from mmdet3d.structures import Det3DDataSample
from torch import Tensor

from georope.registry import MODELS

from .cameras import as_strides, without_missing
from .flip_tta import merge, mirror_boxes, mirror_frames


@MODELS.register_module()
class PETR(Base3DDetector):
    """Camera-only 3D detector on one frame; any batch size and number of cameras.

    Args:
        img_backbone: image backbone; its levels go to the neck.
        img_neck: feature pyramid.
        pts_bbox_head: head, see ``protocols.Head``.
        data_preprocessor: ``FramePreprocessor``, or mmdet3d's.
        position_level: the level the head reads, 0 for the neck's finest; a list for a head that reads several.
        train_cfg: None; mmdet3d's ``init_model`` says so, whatever the model.
        tta: tests mirror each frame too and merge both results, see ``flip_tta``: dict(distance=...), the metres within
            which boxes are one; None does not.
    """

    def __init__(self,
                 img_backbone: dict,
                 img_neck: dict,
                 pts_bbox_head: dict,
                 data_preprocessor: dict | None = None,
                 position_level: int | Sequence[int] = 0,
                 train_cfg: None = None,
                 tta: dict | None = None,
                 init_cfg: dict | None = None) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.img_backbone = MODELS.build(img_backbone)
        channels = getattr(self.img_backbone, 'channels', None)
        if channels and list(channels) != list(img_neck.get('in_channels', channels)):
            raise ValueError(f'img_neck.in_channels={img_neck["in_channels"]} are not the channels of the maps of '
                             f'img_backbone, {list(channels)} at strides {list(self.img_backbone.strides)}')
        self.img_neck = MODELS.build(img_neck)
        self.pts_bbox_head = MODELS.build(pts_bbox_head)
        self.position_level = position_level if isinstance(position_level, int) else tuple(position_level)
        levels, strides = as_strides(self.position_level), as_strides(self.pts_bbox_head.stride)
        if len(levels) != len(strides):
            raise ValueError(f'position_level={position_level} names {len(levels)} levels of img_neck, but '
                             f'pts_bbox_head.stride={self.pts_bbox_head.stride} is that of {len(strides)}')
        self.tta = tta

    def extract_feat(self, batch_inputs: dict) -> Tensor | list[Tensor]:
        """Features of all images.

        Args:
            batch_inputs: ``imgs`` (B, N, 3, height, width), normalised and padded.

        Returns:
            (B, N, C, H, W); for a head of several strides a list, one map for each.

        Raises:
            ValueError: if the feature map does not have the stride that the head counts with.
        """
        if isinstance(batch_inputs, Tensor):
            raise TypeError('a detector needs the calibration of its images, not a tensor alone (as mmdet3d\'s '
                            'get_flops.py passes it): tools/analysis.py counts parameters and FLOPs')
        imgs = batch_inputs['imgs']
        levels = self.img_neck(self.img_backbone(imgs.flatten(0, 1)))
        maps = []
        for level, stride in zip(as_strides(self.position_level), as_strides(self.pts_bbox_head.stride)):
            if level >= len(levels):
                raise ValueError(f'position_level={self.position_level}: img_neck has {len(levels)} levels; raise its '
                                 'num_outs')
            features = levels[level]
            expected = tuple(-(-size // stride) for size in imgs.shape[-2:])
            if features.shape[-2:] != expected:
                raise ValueError(f'pts_bbox_head.stride={stride} wants a feature map of {expected} for images of '
                                 f'{tuple(imgs.shape[-2:])}, but level {level} of img_neck has '
                                 f'{tuple(features.shape[-2:])}: check stride, position_level and out_indices')
            maps.append(features.unflatten(0, imgs.shape[:2]))
        return maps[0] if isinstance(self.position_level, int) else maps

    def loss(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Losses of a batch, see ``PETRHead.loss``."""
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        return self.pts_bbox_head.loss(self.extract_feat(dict(imgs=imgs)), samples)

    def predict(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample],
                **kwargs) -> list[Det3DDataSample]:
        """The samples with ``pred_instances_3d``, see ``PETRHead.predict``."""
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        results = self.pts_bbox_head.predict(self.extract_feat(dict(imgs=imgs)), samples)
        if self.tta is not None:
            imgs, mirrored = mirror_frames(imgs, samples)
            others = self.pts_bbox_head.predict(self.extract_feat(dict(imgs=imgs)), mirrored)
            for other in others:
                other.bboxes_3d = mirror_boxes(other.bboxes_3d)
            max_num = self.pts_bbox_head.bbox_coder.max_num
            results = [merge(*both, max_num=max_num, **self.tta) for both in zip(results, others)]
        return self.add_pred_to_datasample(batch_data_samples, results)

    def _forward(self, batch_inputs: dict, batch_data_samples: list[Det3DDataSample], **kwargs) -> dict[str, Tensor]:
        """Raw predictions, see ``PETRHead.forward``."""
        imgs, samples = without_missing(batch_inputs['imgs'], batch_data_samples)
        return self.pts_bbox_head(self.extract_feat(dict(imgs=imgs)), [sample.metainfo for sample in samples])
