"""tools/benchmark.py at small sizes: ratios of time and memory to the first, and a profile."""
import re
import sys

import pytest
from launching import TOOLS, load

from georope.models import StreamPETR

CONFIG = TOOLS.parent / 'configs/streampetr/streampetr-urope_r50_8xb2-seq-24e_nus-3d.py'
SMALL = ['--cameras', '1', '--layers', '1', '--repeats', '2', '--device', 'cpu']


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, 'argv', ['tools/benchmark.py', *arguments, *SMALL])
    load('benchmark').main()
    return capsys.readouterr().out


def test_costs_are_ratios_to_none(capsys, monkeypatch):
    printed = run(monkeypatch, capsys, '--encodings', 'worldrope', '--queries', '6', '--profile')
    assert '6 queries x 704 tokens x 1 layers' in printed and 'median of 2' in printed
    for name, ratio in (('none', r'1\.000'), ('worldrope', r'\d+\.\d+')):
        assert re.search(rf'^\| {name} .*{ratio} \(', printed, re.M), printed
    assert '_ExpectedRotation' in printed


def test_training_steps(capsys, monkeypatch):
    """Of StreamPETR, through its memory, in half precision; the table is Markdown, its numbers belong together."""
    losses, parse = [], StreamPETR.parse_losses
    monkeypatch.setattr(StreamPETR, 'parse_losses', lambda model, values: losses.append(values) or parse(model, values))
    printed = run(monkeypatch, capsys, '--train', str(CONFIG), '--batch', '1', '--image', '64', '96', '--queries', '32',
                  '--amp', 'bfloat16')
    assert 'Training steps, 1 cameras of 64 x 96, batch 1, bfloat16, CPU' in printed
    header, rule, row = printed.strip().splitlines()[-3:]
    cells = [cell.strip() for cell in row.strip('|').split('|')]
    assert header.count('|') == rule.count('|') == row.count('|') == len(cells) + 1
    milliseconds, images = float(cells[1].removesuffix(' ms')), float(cells[3])
    assert cells[0] == 'streampetr-urope_r50' and cells[2].startswith('1.000 ') and cells[5] == '1.000'
    assert images == pytest.approx(1000 / milliseconds, rel=0.01) and float(cells[4].removesuffix(' MiB')) > 100
    assert len(losses) == 3 and all({'loss_cls', 'dn_loss_bbox', 'enc_loss_cls'} <= set(values) for values in losses)
    assert len({values['loss_cls'].item() for values in losses}) == 3  # frame by frame, and the optimizer acts
