# The depth of tokens that see the centre of an object is supervised.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(depth_loss_weight=0.1)
model = dict(pts_bbox_head=dict(encoding=encoding))
