# Eight hypotheses, log-spaced over the range of the four.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(encoding=dict(anchors=[5, 6.8, 9.4, 12.8, 17.6, 24, 32.9, 45])))
