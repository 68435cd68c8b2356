# URoPE with mixed bands instead of PETR's 3D position embedding.
_base_ = ['./streampetr_r50_8xb2-seq-24e_nus-3d.py', '../_base_/encodings/urope-mixed.py']

model = dict(pts_bbox_head=dict(encoding=_base_.encoding, position_embedding=False))
