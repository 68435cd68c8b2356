# RayRoPE (arXiv 2601.15275) in 3D: one predicted interval of depth; it starts at 20 m (choice).
encoding = dict(type='georope.RayRoPE', anchors=[20])
