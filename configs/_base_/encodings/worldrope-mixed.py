# WorldRoPE with bands that lie across the axes and differ per head (choice).
encoding = dict(type='georope.WorldRoPE', anchors=[5, 12, 25, 45], bands='mixed')
