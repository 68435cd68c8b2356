# PETR small enough for two CPU cores: a narrow ResNet-18 at 96x256, 3 decoder layers, 150 queries within 35 m (the toy
# LiDAR's reach and some). Backbone and neck come from backbone_toy. What differs in the losses makes it learn within
# minutes: classes weigh four times as much, denoising queries start closer to their objects.
_base_ = [
    '../_base_/models/petr_r50.py', '../_base_/datasets/toy-3d-camera.py', '../_base_/schedules/adamw-cosine_24e.py',
    '../_base_/default_runtime.py'
]
load_from = 'work_dirs/backbone_toy/epoch_3.pth'

# What the two position MLPs add to queries and keys starts as large as the contents, not at a sixth of them.
start = dict(type='Kaiming', mode='fan_in', distribution='normal')
# What a rotary encoding has instead: no position MLP of the keys, and its positional kernel as first attention.
rotary = dict(position_embedding=False, decoder=dict(positional_bias=1.5), init_cfg=None)
# The cameras' focal length at 96x256, at which the anchors of predicted depths are metres.
reference_focal = 200.0
detection_range = [-44.0, -44.0, -10.0, 44.0, 44.0, 10.0]

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
        pc_range=_base_.point_cloud_range,
        position_range=detection_range,
        decoder=dict(num_layers=3, feedforward_channels=512, dropout=0.0, with_cp=False),
        denoising=dict(groups=4, noise_scale=0.4),
        bbox_coder=dict(post_center_range=detection_range),
        loss_cls=dict(loss_weight=8.0),
        init_cfg=dict(
            type='Kaiming',
            layer=[],
            override=[dict(start, name='query_embedding'), dict(start, name='position_encoder')])))

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=5, norm_type=2))
train_dataloader = dict(batch_size=4)
auto_scale_lr = dict(base_batch_size=4)

max_epochs = 8
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(end=100)
param_scheduler[1].update(end=max_epochs, T_max=max_epochs)
