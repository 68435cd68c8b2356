# URoPE's ablation: one predicted depth; it starts at 20 m (choice).
encoding = dict(type='georope.LearnedDepth', anchors=[20])
