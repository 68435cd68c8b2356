# VoVNet-99 as the backbone, its weights and how images must look for them: BGR.
img_backbone = dict(
    type='georope.VoVNet',
    spec='V-99-eSE',
    out_features=('stage4', 'stage5'),
    with_cp=True,
    # FCOS3D on nuScenes' train split, from depth on DDAD15M.
    init_cfg=dict(
        type='Pretrained',
        checkpoint='https://github.com/exiawsh/storage/releases/download/v1.0/'
        'fcos3d_vovnet_imgbackbone-remapped.pth',
        prefix='img_backbone.'))
img_normalisation = dict(mean=[103.530, 116.280, 123.675], std=[57.375, 57.120, 58.395], bgr_to_rgb=False)
