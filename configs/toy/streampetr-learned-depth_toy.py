# URoPE with one learned depth instead of PETR's 3D position embedding.
_base_ = ['./streampetr_toy.py', '../_base_/encodings/learned-depth.py']

encoding = dict(reference_focal=_base_.reference_focal)
model = dict(pts_bbox_head=dict(_base_.rotary, encoding=dict(_base_.encoding, **encoding)))
