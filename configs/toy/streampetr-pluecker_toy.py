# A Pluecker embedding of rays instead of PETR's 3D position embedding.
_base_ = ['./streampetr_toy.py', '../_base_/encodings/pluecker.py']

model = dict(
    pts_bbox_head=dict(
        encoding=_base_.encoding,
        position_embedding=False,
        init_cfg=dict(override=[dict(_base_.start, name='query_embedding'), dict(_base_.start, name='encoding')])))
