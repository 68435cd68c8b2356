# In all rotations, remembered objects stand where their velocities have brought them by now (choice).
_base_ = './streampetr-worldrope-selfrope_r50_8xb2-seq-24e_nus-3d.py'

model = dict(pts_bbox_head=dict(motion_in_time=True))
