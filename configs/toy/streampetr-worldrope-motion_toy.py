# In all rotations, remembered objects stand where their velocities have brought them by now.
_base_ = './streampetr-worldrope-selfrope_toy.py'

model = dict(pts_bbox_head=dict(motion_in_time=True))
