# A predicted scale per token and head on top of the default temperature.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(temperature='token')
model = dict(pts_bbox_head=dict(encoding=encoding))
