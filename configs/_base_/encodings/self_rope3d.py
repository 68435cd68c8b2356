# Exact 3D RoPE on self-attention among 3D queries (and on StreamPETR's memory), beside any encoding.
self_encoding = dict(type='georope.RoPE3D')
