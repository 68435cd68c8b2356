# Queries as wide as the boxes that the layer before predicts.
_base_ = './petr-worldrope_toy.py'

model = dict(pts_bbox_head=dict(uncertain_queries=dict(box=1.0, drift=0.3)))
