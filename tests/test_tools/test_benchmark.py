"""tools/benchmark.py at a small size: ratios of time and memory to no encoding, and a profile."""
import re
import sys

from launching import load


def test_costs_are_ratios_to_none(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['tools/benchmark.py', '--encodings', 'worldrope', '--queries', '6', '--cameras',
                                      '1', '--layers', '1', '--repeats', '2', '--profile'])
    load('benchmark').main()
    printed = capsys.readouterr().out
    assert '6 queries x 704 tokens x 1 layers' in printed and 'median of 2' in printed
    for name, ratio in (('none', r'1\.000'), ('worldrope', r'\d+\.\d+')):
        assert re.search(rf'^{name} .*{ratio} \(', printed, re.M), printed
    assert '_ExpectedRotation' in printed
