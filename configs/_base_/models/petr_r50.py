# PETR with ResNet-50, stride 16 (the PETR of the StreamPETR repository).
reference_range = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
detection_range = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]

model = dict(
    type='georope.PETR',
    data_preprocessor=dict(
        type='georope.FramePreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        batch_augments=[dict(type='georope.GridMask')]),
    img_backbone=dict(
        type='mmdet.ResNet',
        depth=50,
        num_stages=4,
        out_indices=(2, 3),
        frozen_stages=-1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        with_cp=True,
        style='pytorch',
        # torchvision://resnet50, which wants torchvision to be installed
        init_cfg=dict(type='Pretrained', checkpoint='https://download.pytorch.org/models/resnet50-0676ba61.pth')),
    img_neck=dict(type='georope.CPFPN', in_channels=[1024, 2048], out_channels=256, num_outs=2),
    pts_bbox_head=dict(
        type='georope.PETRHead',
        num_classes=10,
        num_query=900,
        stride=16,
        pc_range=reference_range,
        position_range=detection_range,
        position_embedding=True,
        encoding=dict(type='georope.NoEncoding'),
        decoder=dict(num_layers=6, num_heads=8, feedforward_channels=2048, dropout=0.1, with_cp=True),
        denoising=dict(groups=10, noise_scale=1.0, split=0.75, loss_weight=1.0),
        bbox_coder=dict(type='georope.NMSFreeCoder', post_center_range=detection_range, max_num=300),
        assigner=dict(
            type='georope.HungarianAssigner3D',
            match_costs=[
                dict(type='mmdet.FocalLossCost', weight=2.0),
                dict(type='georope.BBox3DL1Cost', weight=0.25),
            ]),
        loss_cls=dict(type='georope.FocalLoss', gamma=2.0, alpha=0.25, loss_weight=2.0),
        loss_bbox=dict(type='georope.L1Loss', loss_weight=0.25)))
