"""tools/analysis.py: parameters and FLOPs by part."""
import sys
from unittest import mock

import torch
from launching import TOOLS, load

from georope.engine import build_model


def test_parts_add_up_and_are_right(capsys):
    tool, config = load('analysis'), TOOLS.parent / 'configs/toy/petr-worldrope_toy.py'
    argv = ['analysis', config, '--image', 64, 96, '--cameras', 2, '--frames', 1, '--device', 'cpu']
    with mock.patch.object(sys, 'argv', [str(part) for part in argv]):
        tool.main()
        args = tool.parse_args()
    row = capsys.readouterr().out.splitlines()[-1].split(' | ')
    assert row[0] == '| petr-worldrope_toy' and row[1] == '64x96' and float(row[9]) > 0

    _, model = build_model(str(config), {})
    counts = tool.parameters(model.eval())
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    head = model.pts_bbox_head
    assert counts['encoding'] == 3 * (256 * 12 + 12) == sum(p.numel() for p in head.encoding.parameters())
    assert counts['2D head'] == 0 and counts['backbone'] == sum(p.numel() for p in model.img_backbone.parameters())
    works = []
    for args.cameras in (2, 4):
        works.append(tool.flops(model, tool.Runs(model, (64, 96), args)))
    tokens, queries, layers, dims = 2 * 4 * 6, 150, 3, 256
    assert works[0]['encoding'] == 2 * tokens * layers * dims * 12  # 4 weights, depths and deviations of each token
    attention = 2 * (queries * dims * dims * 4 + 2 * queries * queries * dims  # among queries
                     + (queries * 2 + tokens * 2) * dims * dims + 2 * queries * tokens * dims)
    assert works[0]['decoder'] == layers * (attention + 2 * 2 * queries * dims * 512)
    for part in ('backbone', 'neck', 'encoding'):
        assert works[1][part] == 2 * works[0][part] > 0
    assert torch.is_grad_enabled()
