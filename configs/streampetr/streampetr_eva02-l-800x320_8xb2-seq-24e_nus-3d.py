# EVA-02's ViT-L at 320x800, layer-wise decay of the learning rate: docs/ViT_Large.md of the StreamPETR repository.
_base_ = ['./streampetr_vov-800x320_8xb2-seq-24e_nus-3d.py', '../_base_/models/eva02-l.py']

model = dict(
    data_preprocessor=_base_.eva_normalisation,
    img_backbone=dict(_base_.eva_backbone, _delete_=True),
    img_neck=dict(in_channels=[1024], num_outs=1))

# Its head learns at 4e-4, its backbone at 1e-4 times 0.9 per layer.
optim_wrapper = dict(
    constructor='georope.LayerDecayConstructor',
    optimizer=dict(weight_decay=1e-7),
    paramwise_cfg=dict(layer_decay=0.9, custom_keys={'img_backbone': dict(lr_mult=0.25)}))
