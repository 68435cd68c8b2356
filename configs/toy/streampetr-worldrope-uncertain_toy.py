# Queries as wide as the boxes that the layer before predicts, remembered ones as wide as they may have moved.
_base_ = './streampetr-worldrope_toy.py'

model = dict(pts_bbox_head=dict(uncertain_queries=dict(box=1.0, drift=0.3)))
