# URoPE beside PETR's 3D position embedding.
_base_ = ['./streampetr_toy.py', '../_base_/encodings/urope.py']

model = dict(pts_bbox_head=dict(_base_.rotary, encoding=_base_.encoding, position_embedding=True))
