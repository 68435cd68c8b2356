"""Detectors on mmengine: PETR and its parts."""
from georope import rope
from georope.registry import MODELS

from .assignment import BBox3DL1Cost, HungarianAssigner3D
from .box_code import NMSFreeCoder
from .boxes_2d import BBoxL1Cost, GIoUCost
from .cp_fpn import CPFPN
from .eva_vit import EvaViT
from .focal_head import FocalHead
from .grid_mask import GridMask
from .losses import FocalLoss, L1Loss, QualityFocalLoss
from .petr import PETR
from .petr_classic_head import PETRClassicHead
from .petr_head import PETRHead
from .preprocessor import FramePreprocessor
from .streampetr import StreamPETR
from .streampetr_head import StreamPETRHead
from .timm_backbone import TimmBackbone
from .token_classifier import TokenClassifierHead
from .vovnet import VoVNet

# rope knows no registry: it is plain torch.
for _part in (getattr(rope, _name) for _name in rope.__all__):
    if issubclass(_part, rope.PositionEncoding) and _part is not rope.PositionEncoding:
        MODELS.register_module(module=_part)

__all__ = ['BBox3DL1Cost', 'BBoxL1Cost', 'CPFPN', 'EvaViT', 'FocalHead', 'FocalLoss', 'FramePreprocessor', 'GIoUCost',
           'GridMask', 'HungarianAssigner3D', 'L1Loss', 'NMSFreeCoder', 'PETR', 'PETRClassicHead', 'PETRHead',
           'QualityFocalLoss', 'StreamPETR', 'StreamPETRHead', 'TimmBackbone', 'TokenClassifierHead', 'VoVNet']
