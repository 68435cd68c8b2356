_base_ = [
    '../_base_/models/streampetr_r50.py', '../_base_/datasets/nus-3d-camera-streaming.py',
    '../_base_/schedules/adamw-cosine_24e.py', '../_base_/default_runtime.py'
]
