# Streams: each item of a batch goes through halves of scenes, frame by frame; a test goes through whole scenes.
_base_ = './nus-3d-camera.py'

train_dataloader = dict(batch_sampler=dict(type='georope.StreamBatchSampler', seq_split_num=2))
val_dataloader = dict(batch_sampler=dict(type='georope.SceneBatchSampler'))
test_dataloader = val_dataloader
