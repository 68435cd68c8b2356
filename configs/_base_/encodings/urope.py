# URoPE (arXiv 2604.18747): four fixed depths over the head groups; the depths are our choice for nuScenes.
encoding = dict(type='georope.URoPE', anchors=[5, 12, 25, 45])
