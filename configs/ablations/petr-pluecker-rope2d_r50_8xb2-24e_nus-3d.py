# Keys also turn by their place in the image (URoPE's baseline of Pluecker and 2D RoPE; 3D queries have no place there).
_base_ = '../petr/petr-pluecker_r50_8xb2-24e_nus-3d.py'

encoding = dict(image_rope=(0.1, 2.0))
model = dict(pts_bbox_head=dict(encoding=encoding))
