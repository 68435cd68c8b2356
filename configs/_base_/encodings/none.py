# No position code at all.
encoding = dict(type='georope.NoEncoding')
