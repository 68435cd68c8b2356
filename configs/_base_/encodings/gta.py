# GTA (arXiv 2310.10375) with the identity as the matrix of 3D queries.
encoding = dict(type='georope.GTA')
