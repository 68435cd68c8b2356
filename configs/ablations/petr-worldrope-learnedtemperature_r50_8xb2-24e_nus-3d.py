# A learned scale per head instead of one over the root mean square of a key's coefficients.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(temperature='learned')
model = dict(pts_bbox_head=dict(encoding=encoding))
