# 320x800. The config for released weights of PETR (V2-99, 800x320) after tools/convert_checkpoint.py.
_base_ = [
    '../_base_/models/petr-classic_vov.py', '../_base_/datasets/nus-3d-camera_800x320.py',
    '../_base_/schedules/adamw-cosine_24e.py', '../_base_/default_runtime.py'
]

train_dataloader = dict(batch_size=1)

# lr for a total batch of 8.
optim_wrapper = dict(
    optimizer=dict(lr=2e-4), paramwise_cfg=dict(custom_keys={'img_backbone': dict(lr_mult=0.1)}))
auto_scale_lr = dict(base_batch_size=8)
