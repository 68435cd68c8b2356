"""Runs the tools: in this process where that is enough (importing mmdet3d takes seconds), else as a user would."""
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
_names = (f'run{number}' for number in itertools.count())


def load(tool: str) -> ModuleType:
    """tools/<tool>.py as a module."""
    spec = importlib.util.spec_from_file_location(f'tool_{tool}', TOOLS / f'{tool}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(tool: str, config: Path, *arguments) -> None:
    """Calls main() of tools/<tool>.py. The name keeps mmengine's global logger and message hub of two runs apart."""
    module = load(tool)
    if '--cfg-options' not in arguments:
        arguments = (*arguments, '--cfg-options')
    argv = [tool, config, *arguments, f'experiment_name={next(_names)}']
    # yapf lays out each text of a config: a second each time, most of what a run of a tiny model would cost.
    plain = mock.patch('mmengine.config.config.FormatCode', lambda text, **_: (text, True))
    with mock.patch.object(sys, 'argv', [str(part) for part in argv]), mock.patch.dict(os.environ), plain:
        module.main()


def run(*command, timeout: float = 500) -> subprocess.CompletedProcess:
    """Runs a command on one thread and without GPU, from a directory that is not ours."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]  # free, so that suites may run side by side
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '-1', 'PORT': str(port),
           'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}', 'PYTHONPATH': str(Path(__file__).parent)}
    command = [str(part) for part in command]
    process = subprocess.Popen(command, cwd='/', env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its ranks; killed, it would leave them behind
        output, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output)


def scalars(work_dir: Path, key: str) -> list:
    """A logged value over all runs of a work dir, in the order of time."""
    logs = sorted(work_dir.glob('*/vis_data/scalars.json'), key=lambda path: path.stat().st_mtime)
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [entry[key] for entry in entries if key in entry]


def log(work_dir: Path) -> str:
    """The text log of all runs of a work dir."""
    return '\n'.join(path.read_text() for path in sorted(work_dir.glob('*/*.log')))
