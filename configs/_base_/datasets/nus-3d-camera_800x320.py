# nuScenes at 320x800.
_base_ = './nus-3d-camera.py'

image_aug = dict(final_dim=(320, 800), resize_lim=(0.47, 0.625))
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(image_aug)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(image_aug)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
