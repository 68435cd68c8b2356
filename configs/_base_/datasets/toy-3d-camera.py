# The toy world (tools/make_toy_nuscenes.py) at 96x256. NUSCENES_ROOT names any other nuScenes root instead.
_base_ = './nus-3d-camera.py'

data_root = '{{$NUSCENES_ROOT:data/toy_nuscenes/}}'
point_cloud_range = [-35.2, -35.2, -5.0, 35.2, 35.2, 3.0]
image_aug = dict(
    final_dim=(96, 256), resize_lim=(0.6, 0.8), bot_pct_lim=(0.0, 0.0), rot_lim=(0.0, 0.0), rand_flip=True)

train_pipeline = [
    dict(type='georope.LoadCameraAnnotations'),
    dict(type='georope.ImageAug', **image_aug),
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
train_dataloader = dict(batch_size=1, num_workers=1, dataset=dict(data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(num_workers=1, dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(data_root=data_root, ann_file=f'{data_root}/nuscenes_infos_val.pkl')
test_evaluator = val_evaluator
