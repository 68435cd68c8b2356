# PETR with VoVNet-99, stride 16. Images as the backbone's weights want them: BGR.
_base_ = ['./petr_r50.py', './vovnet.py']

model = dict(
    data_preprocessor=_base_.img_normalisation,
    img_backbone=dict(_base_.img_backbone, _delete_=True),
    img_neck=dict(in_channels=[768, 1024]))
