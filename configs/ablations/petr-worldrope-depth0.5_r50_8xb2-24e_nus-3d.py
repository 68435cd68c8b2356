# Training starts at half the depths.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(encoding=dict(anchors=[2.5, 6, 12.5, 22.5])))
