# Anchors over the pairs of each head instead of over heads.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(channel_wise=True)
model = dict(pts_bbox_head=dict(encoding=encoding))
