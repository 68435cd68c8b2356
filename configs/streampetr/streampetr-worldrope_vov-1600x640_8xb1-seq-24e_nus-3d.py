# WorldRoPE instead of PETR's 3D position embedding in cross-attention.
_base_ = ['./streampetr_vov-1600x640_8xb1-seq-24e_nus-3d.py', '../_base_/encodings/worldrope.py']

encoding = dict(reference_focal=1260.0)  # of nuScenes' cameras at this size
model = dict(pts_bbox_head=dict(encoding=dict(_base_.encoding, **encoding), position_embedding=False))
