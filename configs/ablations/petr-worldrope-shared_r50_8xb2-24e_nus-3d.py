# One predictor for all decoder layers.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(per_layer=False)
model = dict(pts_bbox_head=dict(encoding=encoding))
