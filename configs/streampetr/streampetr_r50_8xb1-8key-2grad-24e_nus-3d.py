# Trained on sliding windows of 8 frames, the last 2 of which have gradients and losses.
_base_ = [
    '../_base_/models/streampetr_r50.py', '../_base_/datasets/nus-3d-camera-sliding-window.py',
    '../_base_/schedules/adamw-cosine_24e.py', '../_base_/default_runtime.py'
]

num_frame_losses = 2
model = dict(
    data_preprocessor=dict(
        type='georope.FramePreprocessor',
        batch_augments=[dict(type='georope.GridMask', last_frames=num_frame_losses)]),
    num_frame_losses=num_frame_losses,
    num_frame_head_grads=num_frame_losses,
    num_frame_backbone_grads=num_frame_losses)

# lr for a total batch of 8.
optim_wrapper = dict(optimizer=dict(lr=2e-4))
auto_scale_lr = dict(base_batch_size=8)
