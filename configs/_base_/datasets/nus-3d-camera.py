# nuScenes, cameras only, 256x704. The recipe of the StreamPETR repository's PETR.
# The data root: NUSCENES_ROOT in the environment (~ is the home folder), else data/nuscenes. The info files lie in it.
data_root = '{{$NUSCENES_ROOT:data/nuscenes/}}'
point_cloud_range = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
class_names = [
    'car', 'truck', 'construction_vehicle', 'bus', 'trailer', 'barrier', 'motorcycle', 'bicycle', 'pedestrian',
    'traffic_cone'
]
image_aug = dict(
    final_dim=(256, 704), resize_lim=(0.38, 0.55), bot_pct_lim=(0.0, 0.0), rot_lim=(0.0, 0.0), rand_flip=True)

train_pipeline = [
    dict(type='georope.LoadCameraAnnotations'),
    dict(type='georope.ImageAug', **image_aug),
    # JPEGs decoded at 1/2 where the resize allows: several times faster, a grey level off on average ('full' is exact).
    dict(type='georope.LoadCameraImages', decode='reduced'),
    dict(type='ObjectRangeFilter', point_cloud_range=point_cloud_range),
    dict(type='georope.BEVAug', rot_range=[-0.3925, 0.3925], scale_ratio_range=[0.95, 1.05]),
    dict(type='georope.PackCameraInputs'),
]
test_pipeline = [
    dict(type='georope.ImageAug', training=False, **image_aug),
    dict(type='georope.LoadCameraImages'),
    dict(type='georope.PackCameraInputs'),
]

train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='georope.NuScenesCameraDataset',
        data_root=data_root,
        ann_file='nuscenes_infos_train.pkl',
        pipeline=train_pipeline,
        metainfo=dict(classes=class_names)))
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='georope.NuScenesCameraDataset',
        data_root=data_root,
        ann_file='nuscenes_infos_val.pkl',
        pipeline=test_pipeline,
        metainfo=dict(classes=class_names),
        test_mode=True))
test_dataloader = val_dataloader

val_evaluator = dict(
    type='georope.NuScenesMetric', data_root=data_root, ann_file=f'{data_root}/nuscenes_infos_val.pkl')
# tools/test.py tracks too. Validation during training does not: the devkit takes long (evaluation/README.md).
test_evaluator = dict(**val_evaluator, tracking=dict())
