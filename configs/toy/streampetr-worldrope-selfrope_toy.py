# Exact 3D RoPE on self-attention as well: among queries and to the memory.
_base_ = ['./streampetr-worldrope_toy.py', '../_base_/encodings/self_rope3d.py']

model = dict(pts_bbox_head=dict(self_encoding=_base_.self_encoding))
