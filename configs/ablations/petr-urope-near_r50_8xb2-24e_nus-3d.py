# Anchors at half the depths.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[2.5, 6, 12.5, 22.5])
model = dict(pts_bbox_head=dict(encoding=encoding))
