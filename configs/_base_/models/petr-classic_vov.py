# PETR as first published, VoVNet-99: mmdet3d's projects/PETR and megvii's repository. Images as the backbone's weights
# want them: BGR.
_base_ = './petr_r50.py'

model = dict(
    data_preprocessor=dict(mean=[103.530, 116.280, 123.675], std=[57.375, 57.120, 58.395], bgr_to_rgb=False),
    img_backbone=dict(
        _delete_=True,
        type='georope.VoVNet',
        spec='V-99-eSE',
        out_features=('stage4', 'stage5'),
        with_cp=True,
        # FCOS3D on nuScenes' train split, from depth on DDAD15M.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/exiawsh/storage/releases/download/v1.0/'
            'fcos3d_vovnet_imgbackbone-remapped.pth',
            prefix='img_backbone.')),
    img_neck=dict(in_channels=[768, 1024]),
    pts_bbox_head=dict(
        type='georope.PETRClassicHead', denoising=None, code_weights=[1, 1, 1, 1, 1, 1, 1, 1, 0.2, 0.2]))
