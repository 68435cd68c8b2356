# Streams on the toy world.
_base_ = './toy-3d-camera.py'

train_dataloader = dict(batch_sampler=dict(type='georope.StreamBatchSampler'))
val_dataloader = dict(batch_sampler=dict(type='georope.SceneBatchSampler'))
test_dataloader = val_dataloader
