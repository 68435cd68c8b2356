# Warms up backbone and neck of all toy models: each token names the class it shows. Stands in for ImageNet's weights.
_base_ = './petr_toy.py'

model = dict(pts_bbox_head=dict(_delete_=True, type='georope.TokenClassifierHead', num_classes=10))
load_from = None

max_epochs = 3
train_cfg = dict(max_epochs=max_epochs)
val_cfg = val_dataloader = val_evaluator = None
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        eta_min_ratio=1e-3,
        convert_to_iter_based=True),
]
