# Sixteen anchors, log-spaced over the range of the four; that takes sixteen heads.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=dict(_delete_=True, spacing='log', num=16, start=5, stop=45))
model = dict(pts_bbox_head=dict(decoder=dict(num_heads=16), encoding=encoding))
