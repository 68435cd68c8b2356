# No temperature: keys stay as short as their uncertainty makes them.
_base_ = '../petr/petr-worldrope_r50_8xb2-24e_nus-3d.py'

encoding = dict(temperature='none')
model = dict(pts_bbox_head=dict(encoding=encoding))
