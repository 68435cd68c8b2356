# From the second layer on, queries stand where the layer before predicts them (choice, see models/query_rotations.py).
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(moving_queries=True))
