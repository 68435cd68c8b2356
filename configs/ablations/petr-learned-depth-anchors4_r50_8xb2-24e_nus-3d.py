# Four learned depths, one for each group of heads, where URoPE has its four fixed ones.
_base_ = '../petr/petr-learned-depth_r50_8xb2-24e_nus-3d.py'

encoding = dict(anchors=[5, 12, 25, 45])
model = dict(pts_bbox_head=dict(encoding=encoding))
