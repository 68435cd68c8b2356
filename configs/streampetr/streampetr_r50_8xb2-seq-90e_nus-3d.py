_base_ = './streampetr_r50_8xb2-seq-24e_nus-3d.py'

max_epochs = 90
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = _base_.param_scheduler
param_scheduler[1].update(end=max_epochs, T_max=max_epochs)
