# Training starts at twice the depths; the range is widened so that the farthest stays free.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[10, 24, 50, 90], depth_range=(0.5, 320))
model = dict(pts_bbox_head=dict(encoding=encoding))
