# VoVNet-99 at 320x800; images as the backbone's weights want them: BGR.
_base_ = ['./streampetr_r50_8xb2-seq-24e_nus-3d.py', '../_base_/models/vovnet.py']

model = dict(
    data_preprocessor=_base_.img_normalisation,
    img_backbone=dict(_base_.img_backbone, _delete_=True),
    img_neck=dict(in_channels=[768, 1024]))

image_aug = dict(final_dim=(320, 800), resize_lim=(0.47, 0.625))
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(image_aug)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(image_aug)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'img_backbone': dict(lr_mult=0.1)}))
