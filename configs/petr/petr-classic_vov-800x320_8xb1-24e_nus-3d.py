# 320x800. The config for released weights of PETR (V2-99, 800x320) after tools/convert_checkpoint.py.
_base_ = [
    '../_base_/models/petr-classic_vov.py', '../_base_/datasets/nus-3d-camera.py',
    '../_base_/schedules/adamw-cosine_24e.py', '../_base_/default_runtime.py'
]

image_aug = dict(final_dim=(320, 800), resize_lim=(0.47, 0.625))
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(image_aug)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(image_aug)
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# lr for a total batch of 8.
optim_wrapper = dict(
    optimizer=dict(lr=2e-4), paramwise_cfg=dict(custom_keys={'img_backbone': dict(lr_mult=0.1)}))
auto_scale_lr = dict(base_batch_size=8)
