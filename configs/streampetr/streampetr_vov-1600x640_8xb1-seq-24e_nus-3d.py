# VoVNet-99 at 640x1600, the size of StreamPETR's entry on the test server; schedule and batch are our choice.
_base_ = './streampetr_vov-800x320_8xb2-seq-24e_nus-3d.py'

image_aug = dict(final_dim=(640, 1600), resize_lim=(0.94, 1.25))
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(image_aug)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(image_aug)
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# lr for a total batch of 8.
optim_wrapper = dict(optimizer=dict(lr=2e-4))
auto_scale_lr = dict(base_batch_size=8)
