# WorldRoPE instead of PETR's 3D position embedding.
_base_ = ['./petr_toy.py', '../_base_/encodings/worldrope.py']

model = dict(
    pts_bbox_head=dict(
        encoding=_base_.encoding, position_embedding=False, decoder=dict(positional_bias=1.5), init_cfg=None))
