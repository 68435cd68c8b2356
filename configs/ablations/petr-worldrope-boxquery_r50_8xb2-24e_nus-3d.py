# A Gaussian about the size of a car around each query.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(query_deviation=[0.9, 0.9, 0.5])
model = dict(pts_bbox_head=dict(encoding=encoding))
