# StreamPETR beside petr_toy: as many queries, 50 of them from a memory of 2 frames. Scenes are cut into threes: longer
# runs of nearly equal frames, one lane wide, teach it less in the same time.
_base_ = ['./petr_toy.py', '../_base_/models/focal_head.py']

model = dict(
    type='georope.StreamPETR',
    img_roi_head=dict(_base_.img_roi_head, embed_dims=64),
    pts_bbox_head=dict(
        type='georope.StreamPETRHead',
        num_query=100,
        memory_len=100,
        topk_proposals=50,
        num_propagated=50,
        code_weights=[2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]))

train_dataloader = dict(batch_size=1, batch_sampler=dict(type='georope.StreamBatchSampler', seq_split_num=14))
auto_scale_lr = dict(base_batch_size=1)
val_dataloader = dict(batch_sampler=dict(type='georope.SceneBatchSampler'))
test_dataloader = val_dataloader
