# URoPE with mixed bands instead of PETR's 3D position embedding.
_base_ = ['./streampetr_toy.py', '../_base_/encodings/urope-mixed.py']

model = dict(pts_bbox_head=dict(_base_.rotary, encoding=_base_.encoding))
