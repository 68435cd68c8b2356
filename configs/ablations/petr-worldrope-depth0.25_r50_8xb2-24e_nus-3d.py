# Training starts at a quarter of the depths; the range is that of x4.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[1.25, 3, 6.25, 11.25], depth_range=(0.5, 320))
model = dict(pts_bbox_head=dict(encoding=encoding))
