# Image tokens of stride 16 and 32, each as large as its own patch (choice).
_base_ = './streampetr-worldrope_r50_8xb2-seq-24e_nus-3d.py'

model = dict(position_level=[0, 1], pts_bbox_head=dict(stride=[16, 32]))
