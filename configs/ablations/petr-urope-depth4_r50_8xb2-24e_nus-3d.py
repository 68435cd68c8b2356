# Anchors at four times the depths.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[20, 48, 100, 180])
model = dict(pts_bbox_head=dict(encoding=encoding))
