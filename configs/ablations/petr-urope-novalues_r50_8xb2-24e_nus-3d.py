# No rotation of values and outputs: what the URoPE paper states; V/O rotation is stated by WorldRoPE only.
_base_ = '../petr/petr-urope_r50_8xb2-24e_nus-3d.py'

encoding = dict(rotate_values=False)
model = dict(pts_bbox_head=dict(encoding=encoding))
