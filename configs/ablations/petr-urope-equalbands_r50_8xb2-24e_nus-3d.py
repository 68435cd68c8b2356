# As many bands on each axis (URoPE's way): of 16 pairs 5, 5 and 5, one stays unrotated.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(bands=dict(type='axial', equal=True))
model = dict(pts_bbox_head=dict(encoding=encoding))
