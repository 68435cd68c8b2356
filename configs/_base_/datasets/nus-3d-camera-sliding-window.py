# Sliding windows: each training sample is a frame with 7 of the 8 before it; a test goes through whole scenes.
_base_ = './nus-3d-camera-streaming.py'

train_dataloader = dict(
    batch_size=1,
    batch_sampler=dict(seq_split_num='all'),
    dataset=dict(type='georope.NuScenesWindowDataset', queue_length=8, random_length=1))
