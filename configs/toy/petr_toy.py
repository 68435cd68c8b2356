# PETR small enough for two CPU cores: a narrow ResNet-18 from scratch at 96x256, 3 decoder layers, 150 queries.
_base_ = [
    '../_base_/models/petr_r50.py', '../_base_/datasets/toy-3d-camera.py', '../_base_/schedules/adamw-cosine_24e.py',
    '../_base_/default_runtime.py'
]

model = dict(
    data_preprocessor=dict(batch_augments=None),
    img_backbone=dict(
        depth=18,
        base_channels=32,
        norm_cfg=dict(requires_grad=True),
        norm_eval=False,
        with_cp=False,
        init_cfg=None),
    img_neck=dict(in_channels=[128, 256]),
    pts_bbox_head=dict(
        num_query=150,
        decoder=dict(num_layers=3, feedforward_channels=512, dropout=0.0, with_cp=False),
        denoising=dict(groups=4)))

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=35, norm_type=2))
auto_scale_lr = dict(base_batch_size=2)
