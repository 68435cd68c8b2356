# Image tokens attend to each other before queries attend to them.
_base_ = './petr-worldrope_toy.py'

model = dict(pts_bbox_head=dict(token_encoder=dict(num_layers=1, feedforward_channels=512, dropout=0.0)))
