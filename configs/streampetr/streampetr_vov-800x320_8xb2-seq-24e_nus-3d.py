# VoVNet-99 at 320x800; images as the backbone's weights want them: BGR.
_base_ = './streampetr_r50_8xb2-seq-24e_nus-3d.py'

model = dict(
    data_preprocessor=dict(mean=[103.530, 116.280, 123.675], std=[57.375, 57.120, 58.395], bgr_to_rgb=False),
    img_backbone=dict(
        _delete_=True,
        type='georope.VoVNet',
        spec='V-99-eSE',
        out_features=('stage4', 'stage5'),
        with_cp=True,
        # FCOS3D on nuScenes' train split, from depth on DDAD15M.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/exiawsh/storage/releases/download/v1.0/'
            'fcos3d_vovnet_imgbackbone-remapped.pth',
            prefix='img_backbone.')),
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
