# PETR small enough for two CPU cores: a narrow ResNet-18 from scratch at 96x256, 3 decoder layers, 150
# queries, 12 epochs of batch 1.
_base_ = [
    '../_base_/models/petr_r50.py', '../_base_/datasets/toy-3d-camera.py', '../_base_/schedules/adamw-cosine_24e.py',
    '../_base_/default_runtime.py'
]

model = dict(
    data_preprocessor=dict(batch_augments=None),
    img_backbone=dict(
        depth=18,
        base_channels=16,
        norm_cfg=dict(requires_grad=True),
        norm_eval=False,
        with_cp=False,
        init_cfg=None),
    img_neck=dict(in_channels=[64, 128]),
    pts_bbox_head=dict(
        num_query=150,
        decoder=dict(num_layers=3, feedforward_channels=512, dropout=0.0, with_cp=False),
        denoising=dict(groups=4)))

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=8e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=35, norm_type=2))
auto_scale_lr = dict(base_batch_size=1)

max_epochs = 12
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 3, by_epoch=False, begin=0, end=100),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        eta_min_ratio=1e-3,
        convert_to_iter_based=True),
]
