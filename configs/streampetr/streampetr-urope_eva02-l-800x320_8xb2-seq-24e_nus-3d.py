# URoPE instead of PETR's 3D position embedding in cross-attention.
_base_ = ['./streampetr_eva02-l-800x320_8xb2-seq-24e_nus-3d.py', '../_base_/encodings/urope.py']

model = dict(pts_bbox_head=dict(encoding=_base_.encoding, position_embedding=False))
