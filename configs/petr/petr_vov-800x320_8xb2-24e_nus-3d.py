# VoVNet-99 at 320x800 under the recipe of petr_r50.
_base_ = [
    '../_base_/models/petr_vov.py', '../_base_/datasets/nus-3d-camera_800x320.py',
    '../_base_/schedules/adamw-cosine_24e.py', '../_base_/default_runtime.py'
]

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'img_backbone': dict(lr_mult=0.1)}))
