# The 2D head beside the 3D head: boxes, centres, heat maps. All image tokens are kept, as in the published recipe.
img_roi_head = dict(
    type='georope.FocalHead',
    num_classes=10,
    assigner=dict(
        type='georope.HungarianAssigner3D',
        match_costs=[
            dict(type='mmdet.FocalLossCost', weight=2.0),
            dict(type='georope.BBoxL1Cost', weight=5.0),
            dict(type='georope.GIoUCost', weight=2.0),
            dict(type='georope.BBox3DL1Cost', weight=10.0),
        ]),
    loss_cls2d=dict(type='georope.QualityFocalLoss', beta=2.0, loss_weight=2.0),
    loss_centerness=dict(type='mmdet.GaussianFocalLoss', loss_weight=1.0),
    loss_bbox2d=dict(type='mmdet.L1Loss', loss_weight=5.0),
    loss_iou2d=dict(type='mmdet.GIoULoss', loss_weight=2.0),
    loss_centers2d=dict(type='mmdet.L1Loss', loss_weight=10.0))
