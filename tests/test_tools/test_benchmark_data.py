"""tools/benchmark_data.py on few frames, and against mmdet3d's converter on real tables."""
import sys

import pytest
from launching import TOOLS, load, run


@pytest.fixture
def measure(tmp_path, monkeypatch, capsys):
    def run(name, *options):
        monkeypatch.setattr(sys, 'argv', ['', str(tmp_path), name, *map(str, options)])
        load('benchmark_data').main()
        return capsys.readouterr().out
    return run


def test_measures_a_made_up_set(measure):
    printed = measure('create', '--frames', 80, '--sweeps', 1)
    assert 'sample 80, sample_data 1120' in printed and 'create_data, 80 frames: ' in printed
    printed = measure('load', '--frames', 80, '--sweeps', 1, '--workers', 1)
    assert 'info file read and checked: ' in printed and 'frames by 1 workers: ' in printed
    printed = measure('validate', '--frames', 80, '--sweeps', 1, '--boxes', 5, '--profile', 3)
    assert '0 violations' in printed and 'function calls' in printed
    assert float(printed.split('peak memory ')[1].split()[0]) > 100


def test_compares_with_mmdet3d(tmp_path, shared):
    done = run(sys.executable, TOOLS / 'benchmark_data.py', tmp_path, 'compare', '--root',
               shared / 'data/nuscenes_scene0103')
    assert done.returncode == 0, done.stdout
    assert 'georope: tools/create_data.py: ' in done.stdout and 'mmdet3d: its tools/create_data.py' in done.stdout
