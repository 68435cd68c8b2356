# ViT-L of EVA-02 as the backbone, for images of 320x800, and how images must look for it: RGB.
eva_backbone = dict(
    type='georope.EvaViT',
    global_window_size=20,
    with_cp=True,
    # eva02_L_coco_det_sys_o365.pth of huggingface.co/Yuxin-CV/EVA-02 after tools/convert_checkpoint.py.
    init_cfg=dict(type='Pretrained', checkpoint='ckpts/eva02_L_o365_georope.pth', prefix='img_backbone.'))
eva_normalisation = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
