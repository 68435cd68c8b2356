# PETR with our encoding on our data: four cameras, no LiDAR, three classes (make_data.py). Boxes are in the ego frame:
# the ground lies at z = 0, not 1.8 m below.
_base_ = '../../../configs/toy/petr-urope_toy.py'
custom_imports = dict(imports=['georope', 'my_project'])
load_from = None

data_root = '{{$YARD_ROOT:data/yard/}}'
# forklift, worker, bollard, under the names of the devkit's classes they stand for (classes.json)
class_names = ['truck', 'pedestrian', 'traffic_cone']
point_cloud_range = [-35.2, -35.2, -3.0, 35.2, 35.2, 5.0]
detection_range = [-44.0, -44.0, -8.0, 44.0, 44.0, 12.0]

model = dict(
    pts_bbox_head=dict(
        num_classes=3,
        pc_range=point_cloud_range,
        position_range=detection_range,
        bbox_coder=dict(post_center_range=detection_range),
        encoding=dict(type='GroundURoPE', ground=0.0)))

train_pipeline = _base_.train_pipeline
train_pipeline[3].point_cloud_range = point_cloud_range  # ObjectRangeFilter
data = dict(data_root=data_root, metainfo=dict(classes=class_names))
train_dataloader = dict(dataset=dict(**data, pipeline=train_pipeline))
val_dataloader = dict(dataset=data)
test_dataloader = val_dataloader
val_evaluator = dict(data_root=data_root, ann_file=f'{data_root}/nuscenes_infos_val.pkl')
test_evaluator = val_evaluator
