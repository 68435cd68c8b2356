# Queries that move from layer to layer.
_base_ = './streampetr-worldrope_toy.py'

model = dict(pts_bbox_head=dict(moving_queries=True))
