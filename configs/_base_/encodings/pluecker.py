# An absolute embedding of each token's ray.
encoding = dict(type='georope.Pluecker')
