# Image tokens attend to each other before queries attend to them (choice, see models/token_encoder.py).
_base_ = './streampetr-worldrope_r50_8xb2-seq-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(token_encoder=dict(num_layers=1, feedforward_channels=1024, dropout=0.1, with_cp=True)))
