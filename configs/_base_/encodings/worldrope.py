# WorldRoPE (arXiv 2610.16337): four predicted Gaussians of depth, axial bands (paper); numbers are our choice.
encoding = dict(type='georope.WorldRoPE', anchors=[5, 12, 25, 45])
