# Keys are also rotated by their position in the image (URoPE's baseline of Pluecker and 2D RoPE; 3D queries have none).
_base_ = '../petr/petr-pluecker_r50_8xb2-24e_nus-3d.py'

encoding = dict(image_rope=(0.1, 2.0))
model = dict(pts_bbox_head=dict(encoding=encoding))
