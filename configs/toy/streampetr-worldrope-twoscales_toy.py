# Image tokens of stride 16 and 32.
_base_ = './streampetr-worldrope_toy.py'

model = dict(position_level=[0, 1], pts_bbox_head=dict(stride=[16, 32]))
