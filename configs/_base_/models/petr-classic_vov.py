# PETR as first published, VoVNet-99: mmdet3d's projects/PETR and megvii's repository. Images as the backbone's weights
# want them: BGR.
_base_ = ['./petr_r50.py', './vovnet.py']

model = dict(
    data_preprocessor=_base_.img_normalisation,
    img_backbone=dict(_base_.img_backbone, _delete_=True),
    img_neck=dict(in_channels=[768, 1024]),
    pts_bbox_head=dict(
        type='georope.PETRClassicHead', denoising=None, code_weights=[1, 1, 1, 1, 1, 1, 1, 1, 0.2, 0.2]))
