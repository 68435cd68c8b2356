"""tools/benchmark_evaluation.py on few frames; it compares all numbers with the devkit's by itself."""
import sys

import pytest
from launching import load


@pytest.mark.parametrize('measure, expected', [
    ('detections', 'NDS 0.'), ('tracks', ' on 8 cores'), ('devkit', 'all numbers of ours and of the devkit are equal')])
def test_measures_and_compares(tmp_path, monkeypatch, capsys, measure, expected):
    options = ['--frames', '50', '--boxes', '30', '--processes', '1']
    monkeypatch.setattr(sys, 'argv', ['', str(tmp_path), measure, *options])
    load('benchmark_evaluation').main()
    printed = capsys.readouterr().out
    assert expected in printed and f'{measure}, 50 frames, 30 boxes each: ' in printed
    assert float(printed.split('peak memory ')[1].split()[0]) > 100
