# URoPE beside an absolute embedding of rays.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(pluecker=True)
model = dict(pts_bbox_head=dict(encoding=encoding))
