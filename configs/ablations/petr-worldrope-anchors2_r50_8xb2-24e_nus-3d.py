# Two hypotheses.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[10, 35])
model = dict(pts_bbox_head=dict(encoding=encoding))
