# RoPETR (arXiv 2504.12643) on self-attention among 3D queries and on StreamPETR's memory: BEV x, y and time.
self_encoding = dict(type='georope.BEVTimeRoPE')
