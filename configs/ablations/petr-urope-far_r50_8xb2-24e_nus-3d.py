# Anchors at one and a half of the depths.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[7.5, 18, 37.5, 67.5])
model = dict(pts_bbox_head=dict(encoding=encoding))
