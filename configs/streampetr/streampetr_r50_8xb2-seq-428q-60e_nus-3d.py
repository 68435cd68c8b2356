# 300 learned queries and 128 from memory, 60 epochs; the backbone comes from Cascade Mask R-CNN on nuImages.
_base_ = './streampetr_r50_8xb2-seq-24e_nus-3d.py'

model = dict(
    img_backbone=dict(
        init_cfg=dict(
            checkpoint='https://download.openmmlab.com/mmdetection3d/v0.1.0_models/nuimages_semseg/'
            'cascade_mask_rcnn_r50_fpn_coco-20e_20e_nuim/'
            'cascade_mask_rcnn_r50_fpn_coco-20e_20e_nuim_20201009_124951-40963960.pth',
            prefix='backbone.')),
    pts_bbox_head=dict(num_query=300, memory_len=512, topk_proposals=128, num_propagated=128))

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'img_backbone': dict(lr_mult=0.1)}))

max_epochs = 60
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = _base_.param_scheduler
param_scheduler[1].update(end=max_epochs, T_max=max_epochs)
