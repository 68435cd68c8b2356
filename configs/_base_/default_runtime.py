default_scope = 'mmdet3d'
custom_imports = dict(imports=['georope'], allow_failed_imports=False)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # Three, since mmengine removes the oldest before it writes the newest: a run killed while saving keeps two.
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    plain_checkpoint=dict(type='georope.PlainCheckpointHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    stream=dict(type='georope.StreamHook'),
    check_data=dict(type='georope.CheckDataHook'),
    visualization=dict(type='georope.DetectionVisualizationHook'))

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

# Ranks draw their own dropout, noise and masks; the order of the samples depends on seed and epoch alone.
randomness = dict(seed=0, diff_rank_seed=True)

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='Visualizer', vis_backends=vis_backends)
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
