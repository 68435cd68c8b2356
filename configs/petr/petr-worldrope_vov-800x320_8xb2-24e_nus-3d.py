# WorldRoPE instead of PETR's 3D position embedding.
_base_ = ['./petr_vov-800x320_8xb2-24e_nus-3d.py', '../_base_/encodings/worldrope.py']

encoding = dict(reference_focal=630.0)  # of nuScenes' cameras at this size
model = dict(pts_bbox_head=dict(encoding=dict(_base_.encoding, **encoding), position_embedding=False))
