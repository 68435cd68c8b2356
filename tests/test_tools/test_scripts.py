"""The slurm scripts against an srun that only shows its arguments; dist_*.sh run for real in test_two_processes.py."""
import subprocess
from pathlib import Path

import pytest
from launching import TOOLS

ARGUMENTS = ['--cfg-options', 'model.name=two words', 'data="[(a,b)]"']


@pytest.mark.parametrize('name, given, passed', [
    ('slurm_train.sh', ['part', 'job', 'config.py', 'work dir'],
     [f'{TOOLS}/train.py', 'config.py', '--work-dir=work dir', '--launcher=slurm']),
    ('slurm_test.sh', ['part', 'job', 'config.py', 'a.pth'],
     [f'{TOOLS}/test.py', 'config.py', 'a.pth', '--launcher=slurm']),
])
def test_slurm(tmp_path: Path, name, given, passed):
    (tmp_path / 'srun').write_text('#!/bin/sh\nprintf "%s\\n" "OMP=$OMP_NUM_THREADS" "$@"\n')
    (tmp_path / 'srun').chmod(0o755)
    env = {'PATH': f'{tmp_path}:/usr/bin:/bin', 'GPUS': '4', 'GPUS_PER_NODE': '2', 'SRUN_ARGS': '--qos=high --time=60'}
    out = subprocess.check_output([TOOLS / name, *given, *ARGUMENTS], env=env, cwd='/', text=True)
    assert out.splitlines() == [
        'OMP=1', '-p', 'part', '--job-name=job', '--gres=gpu:2', '--ntasks=4', '--ntasks-per-node=2',
        '--cpus-per-task=5', '--kill-on-bad-exit=1', '--qos=high', '--time=60', 'python', '-u', *passed, *ARGUMENTS]


@pytest.mark.parametrize('name', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh', 'slurm_test.sh'])
def test_too_few_arguments_show_the_usage(name):
    out = subprocess.run([TOOLS / name, 'config.py'], capture_output=True, text=True)
    assert out.returncode == 2 and out.stderr.startswith('usage: ')
