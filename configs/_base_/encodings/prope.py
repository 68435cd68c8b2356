# PRoPE (arXiv 2507.10496) with the identity as the matrix of 3D queries.
encoding = dict(type='georope.PRoPE')
