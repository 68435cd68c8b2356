# PETR as first published, VoVNet-99: mmdet3d's projects/PETR and megvii's repository.
_base_ = './petr_vov.py'

model = dict(
    pts_bbox_head=dict(
        type='georope.PETRClassicHead', denoising=None, code_weights=[1, 1, 1, 1, 1, 1, 1, 1, 0.2, 0.2]))
