# A short run that learns the frames of a small val split by heart, at 128x352 without augmentation: a check of the
# whole path on real data (tools/demo.py --root ... --config configs/toy/petr-urope_overfit.py).
_base_ = './petr-urope_toy.py'
load_from = None

point_cloud_range = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
detection_range = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]

image_aug = dict(
    final_dim=(128, 352), resize_lim=(0.22, 0.22), bot_pct_lim=(0.0, 0.0), rot_lim=(0.0, 0.0), rand_flip=False)
pack = dict(type='georope.PackCameraInputs')
train_pipeline = [
    dict(type='georope.LoadCameraAnnotations'),
    dict(type='georope.ImageAug', training=False, **image_aug),
    dict(type='georope.LoadCameraImages'),
    dict(type='ObjectRangeFilter', point_cloud_range=point_cloud_range),
    pack,
]
test_pipeline = [
    dict(type='georope.ImageAug', training=False, **image_aug),
    dict(type='georope.LoadCameraImages'),
    pack,
]
model = dict(
    img_backbone=dict(base_channels=32),
    img_neck=dict(in_channels=[128, 256]),
    pts_bbox_head=dict(
        pc_range=point_cloud_range,
        position_range=detection_range,
        bbox_coder=dict(post_center_range=detection_range)))
auto_scale_lr = dict(base_batch_size=2)
train_dataloader = dict(
    batch_size=2,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(ann_file='nuscenes_infos_val.pkl', pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_iters = 400
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 3, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR', by_epoch=False, begin=0, end=max_iters, T_max=max_iters, eta_min_ratio=1e-3),
]
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(by_epoch=False, interval=100))
log_processor = dict(by_epoch=False)
