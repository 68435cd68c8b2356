"""The GPU suite and tools/gpu_check.sh on a machine without a GPU."""
import os
import subprocess
import sys
from pathlib import Path

from launching import TOOLS, run

# An interpreter that has everything; what it runs is told below.
PYTHON = '''#!/bin/bash
echo "$@" >>"$(dirname "$0")/calls"
case "$*" in
    *'import georope') ;;
%s
esac
'''
WITH_GPU = """
    *cuda*) echo "torch 2, a GPU" ;;
    *pytest*) echo '9 passed' ;;
    *'--train --amp'*) printf '%s\\n' noise 'Training steps of a test' '' '| a |' ;;
    *--train*) echo 'out of memory'; exit 3 ;;
    *) echo '900 queries of a test' ;;
"""
WITHOUT_GPU = f'    *) exec {sys.executable} "$@" ;;'


def check(tmp_path: Path, behaviour: str) -> subprocess.CompletedProcess:
    python = tmp_path / 'python'
    python.write_text(PYTHON % behaviour)
    python.chmod(0o755)
    return subprocess.run([TOOLS / 'gpu_check.sh', tmp_path / 'out'], capture_output=True, text=True, cwd='/',
                          env=dict(os.environ, PYTHON=str(python), CUDA_VISIBLE_DEVICES='-1'))


def test_one_failure_does_not_stop_the_others(tmp_path: Path):
    result = check(tmp_path, WITH_GPU)
    summary = (tmp_path / 'out/summary.txt').read_text()
    assert result.returncode == 1 and result.stdout.endswith(summary)
    for name, status, last in (('suite', 0, '9 passed'), ('train-float16', 0, '| a |'),
                               ('train-float32', 3, 'out of memory'), ('decoder-float16', 0, '900 queries of a test')):
        line, = (line for line in summary.splitlines() if f' {name}: ' in line)
        assert f'exit status {status}, ' in line and line.endswith(f' s: {last}')
    tables = (tmp_path / 'out/tables.md').read_text().split()
    assert tables == 'Training steps of a test | a | 900 queries of a test'.split()
    calls = (tmp_path / 'calls').read_text()
    assert '-m pytest tests/gpu' in calls and len(list((tmp_path / 'out').iterdir())) <= 8


def test_without_a_gpu_it_says_so(tmp_path: Path):
    result = check(tmp_path, WITHOUT_GPU)
    assert result.returncode == 1 and 'no CUDA device' in result.stdout and len(result.stdout.splitlines()) == 1


def pytest_gpu(*arguments, **environment):
    env = [f'{key}={value}' for key, value in environment.items()]
    return run('env', *env, sys.executable, '-m', 'pytest', TOOLS.parent / 'tests/gpu', *arguments)


def test_the_suite_is_skipped_with_one_line():
    result = pytest_gpu()
    assert result.returncode == 0 and '\n1 skipped' in result.stdout
    line, = (line for line in result.stdout.splitlines() if 'tests/gpu needs a CUDA device' in line)
    assert int(line.split()[-4]) > 100


def test_the_suite_runs_on_a_cpu_when_told_so():
    """A part of it; the whole of it takes minutes."""
    result = pytest_gpu('-m', 'gpu', '-k', 'worldrope-mixed and not float16 and not compile', GEOROPE_TEST_DEVICE='cpu')
    assert result.returncode == 0 and ' passed' in result.stdout and 'skipped' not in result.stdout, result.stdout
