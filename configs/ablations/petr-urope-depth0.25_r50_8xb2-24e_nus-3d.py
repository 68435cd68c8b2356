# Anchors at a quarter of the depths.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[1.25, 3, 6.25, 11.25])
model = dict(pts_bbox_head=dict(encoding=encoding))
