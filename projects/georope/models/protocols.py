"""What detectors and heads expect of each other, written once. A head of one's own needs no base class: PETR and
StreamPETR call nothing of it but this.

A head is named in a config, ``pts_bbox_head=dict(type='my_package.MyHead', ...)``, and is an ``nn.Module``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from torch import Tensor


@runtime_checkable
class Head(Protocol):
    """A head of ``PETR``: features of all cameras in, losses or boxes out.

    The meta information of each sample is what ``PackCameraInputs`` packs of a frame, see
    ``georope.datasets.frame.CameraFrame``; ``ego_pose`` is its ``lidar2global``. A camera whose ``img_shape`` is (0, 0)
    is not there: its tokens are padding, which a head must hide (``cameras.padded_tokens`` says which tokens are).

    Attributes:
        stride: pixels per cell of the feature map; the detector checks it. A tuple of strides asks for as many maps.
        num_classes: classes; ``CheckDataHook`` holds it against the dataset's.
    """

    stride: int | tuple[int, ...]
    num_classes: int

    def loss(self, features: Tensor, data_samples: Sequence[Det3DDataSample], tokens: Tensor | None = None
             ) -> dict[str, Tensor]:
        """Losses of one frame per sample.

        Args:
            features: (B, N, C, H, W); a list of such maps where ``stride`` is a tuple.
            data_samples: with ``gt_instances_3d`` (bboxes_3d, labels_3d), on the CPU; any may be without objects.
            tokens: (B, K), the image tokens to attend to, in the order (map, camera, row, column); None for all. Only
                StreamPETR with an ``img_roi_head`` of a ratio below 1 gives them.

        Returns:
            Scalars; those with ``loss`` in their name are summed.
        """

    def predict(self, features: Tensor, data_samples: Sequence[Det3DDataSample], tokens: Tensor | None = None
                ) -> list[InstanceData]:
        """Per sample ``bboxes_3d`` (LiDARInstance3DBoxes of 9 dims, metres, m/s), ``scores_3d``, ``labels_3d``."""


class StreamMemory(Protocol):
    """What a head remembers of the previous frames of each stream slot."""

    def reset(self) -> None:
        """Forget all of it."""


@runtime_checkable
class StreamHead(Head, Protocol):
    """A head of ``StreamPETR``, fed frame by frame: item b of a batch continues item b of the batch before it.

    The head itself starts a stream slot anew where ``prev_exists`` of a sample is False, and all of them when
    ``train()`` switches between training and evaluation. A plain call, ``head(features, metas, tokens=None)``, lets it
    see a frame without losses: StreamPETR does so with the first frames of a window.

    Attributes:
        memory: StreamPETR resets it before each window.
    """

    memory: StreamMemory

    def __call__(self, features: Tensor, metas: Sequence[dict], tokens: Tensor | None = None) -> dict[str, Tensor]:
        """Raw predictions of one frame per sample, and remember it."""
