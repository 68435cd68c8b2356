# Queries that move from layer to layer.
_base_ = './petr-worldrope_toy.py'

model = dict(pts_bbox_head=dict(moving_queries=True))
