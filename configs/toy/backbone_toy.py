# Pretrains backbone and neck of all toy models: each image token is classified by what it shows. No ImageNet.
_base_ = './petr_toy.py'

model = dict(pts_bbox_head=dict(_delete_=True, type='georope.TokenClassifierHead', num_classes=10))
load_from = None
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=1)

max_epochs = 3
train_cfg = dict(max_epochs=max_epochs)
val_cfg = val_dataloader = val_evaluator = None
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=0.1, end=50)
param_scheduler[1].update(end=max_epochs, T_max=max_epochs)
