# Mixed bands that training turns.
_base_ = '../petr/petr-worldrope-mixed_r50_8xb2-24e_nus-3d.py'

encoding = dict(bands=dict(_delete_=True, type='mixed', learnable=True))
model = dict(pts_bbox_head=dict(encoding=encoding))
