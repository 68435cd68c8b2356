# StreamPETR with ResNet-50: 644 learned queries and 256 from memory, which holds 4 frames.
_base_ = ['./petr_r50.py', './focal_head.py']

model = dict(
    type='georope.StreamPETR',
    img_roi_head=_base_.img_roi_head,
    pts_bbox_head=dict(
        type='georope.StreamPETRHead',
        num_query=644,
        memory_len=1024,
        topk_proposals=256,
        num_propagated=256,
        code_weights=[2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
