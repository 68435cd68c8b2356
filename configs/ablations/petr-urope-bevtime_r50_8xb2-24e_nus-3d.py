# RoPETR's BEV and time code on self-attention as well.
_base_ = ['../petr/petr-urope_r50_8xb2-24e_nus-3d.py', '../_base_/encodings/self_bev-time.py']

model = dict(pts_bbox_head=dict(self_encoding=_base_.self_encoding))
