"""Detectors on mmengine: PETR and its parts."""
from georope.registry import MODELS
from georope.rope import NoEncoding, URoPE

from .assignment import BBox3DL1Cost, HungarianAssigner3D
from .box_code import NMSFreeCoder
from .cp_fpn import CPFPN
from .grid_mask import GridMask
from .losses import FocalLoss
from .petr import PETR
from .petr_head import PETRHead

# rope knows no registry: it is plain torch.
for _encoding in (NoEncoding, URoPE):
    MODELS.register_module(module=_encoding)

__all__ = ['BBox3DL1Cost', 'CPFPN', 'FocalLoss', 'GridMask', 'HungarianAssigner3D', 'NMSFreeCoder', 'PETR', 'PETRHead']
