# Queries as wide as the boxes that the layer before predicts (choice, see georope.models.query_rotations).
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(uncertain_queries=dict(box=1.0, drift=0.3)))
