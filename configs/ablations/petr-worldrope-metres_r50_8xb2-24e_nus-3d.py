# Predicted depths in metres, whatever the lens.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(reference_focal=None)
model = dict(pts_bbox_head=dict(encoding=encoding))
