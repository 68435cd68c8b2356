"""Import, registration, version gate and what a wheel holds."""
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import georope
from georope.version import check_requirements

ROOT = Path(__file__).resolve().parents[1]


def python(code, cwd):
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_custom_imports_work_from_any_directory(tmp_path):
    """No repository root on the path is needed."""
    (tmp_path / 'mine.py').write_text(
        f"_base_ = {str(ROOT / 'configs/toy/petr-urope_toy.py')!r}\nmodel = dict(pts_bbox_head=dict(num_query=33))\n")
    out = python(
        'from mmengine.config import Config; from mmengine.registry import init_default_scope\n'
        "cfg = Config.fromfile('mine.py'); init_default_scope('mmdet3d')\n"
        'from mmdet3d.registry import MODELS\n'
        'model = MODELS.build(cfg.model)\n'
        'print(type(model).__module__, model.pts_bbox_head.num_query)', tmp_path)
    assert out.split() == ['georope.models.petr', '33']


# What mmdet3d's projects/PETR registers, under the same names as ours, in mmdet3d's registries.
PROJECTS_PETR = '''
from mmdet3d.registry import MODELS, TASK_UTILS
for registry, names in ((MODELS, ('PETR', 'PETRHead', 'CPFPN')), (TASK_UTILS, ('NMSFreeCoder', 'BBox3DL1Cost'))):
    for name in names:
        registry.register_module(name=name, module=type(name, (), {}))
'''


@pytest.mark.parametrize('order', ['{georope}{petr}import georope.models\n', '{petr}{georope}'])
def test_names_do_not_clash_with_projects_petr(order, tmp_path):
    """In either order, from any default scope."""
    code = order.format(georope='import georope\n', petr=PROJECTS_PETR) + (
        'from mmengine.registry import MODELS, DefaultScope\n'
        "for scope in ('mmengine', 'mmdet', 'mmdet3d', 'georope'):\n"
        '    with DefaultScope.overwrite_default_scope(scope):\n'
        "        print(MODELS.build(dict(type='georope.NoEncoding')).__class__.__name__)\n"
        'import mmdet3d.registry\n'
        "for name in ('georope.PETR', 'PETR'):\n"
        '    print(mmdet3d.registry.MODELS.get(name).__module__)')
    assert python(code, tmp_path).split() == ['NoEncoding'] * 4 + ['georope.models.petr', '__main__']


# Fails on every import of what a machine with torch alone does not have, whoever asks.
TORCH_ALONE = '''
import resource, sys, time, torch
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'mmcv', 'mmengine', 'mmdet', 'mmdet3d', 'nuscenes', 'packaging',
                                      'pandas', 'scipy', 'cv2'}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
from georope.rope import Rays, RotaryAttention, WorldRoPE
seconds = time.perf_counter() - started
print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
encoding = WorldRoPE(num_heads=2, head_dim=16, num_layers=1)
frame = encoding.prepare(Rays.from_lidar2img(torch.eye(4)[None, None], feature_size=(2, 3), stride=16))
keys = encoding.rotate_keys(frame, torch.zeros(1, 6, 32), layer=0)
out = RotaryAttention(32, 2)(*torch.rand(3, 1, 6, 32), encoding.rotate_queries(torch.rand(1, 6, 3)), keys)
assert out.shape == (1, 6, 32)
'''


def test_the_method_needs_torch_alone_and_little_of_it(tmp_path):
    seconds, megabytes = map(float, python(TORCH_ALONE, tmp_path).split())
    assert seconds < 0.3 and megabytes < 30


def test_the_import_changes_nothing_for_other_models(tmp_path):
    """A module of others that a checkpoint fills to a small part loads as without georope, whatever is imported."""
    code = '''
import torch
from mmengine.model import BaseModule, PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader, checkpoint
class Other(BaseModule):
    def __init__(self):
        super().__init__(init_cfg=dict(type='Pretrained', checkpoint='part.pth'))
        self.first, self.second, self.third = (torch.nn.Linear(1, 1) for _ in range(3))
torch.save({'first.bias': torch.ones(1)}, 'part.pth')
state = lambda: (WEIGHT_INITIALIZERS.get('Pretrained'), checkpoint.load_url, dict(CheckpointLoader._schemes))
before = state()
import georope.datasets, georope.engine, georope.evaluation, georope.models, georope.visualization
assert state() == before and before[0] is PretrainedInit
other = Other()
other.init_weights()
print(other.first.bias.item())
'''
    assert python(code, tmp_path).split()[-1] == '1.0'


def test_version_gate_names_every_package_that_does_not_fit(monkeypatch):
    check_requirements()
    real = metadata.version

    def version(name):
        if name == 'motmetrics':
            raise metadata.PackageNotFoundError(name)
        return {'mmcv': '2.2.0', 'numpy': '2.1.0', 'torch': '2.0.1+cu118'}.get(name) or real(name)
    monkeypatch.setattr(metadata, 'version', version)
    with pytest.raises(RuntimeError) as error:  # an ImportError would be swallowed by mmengine's registry
        check_requirements()
    message = str(error.value)
    for part in ('mmcv: 2.2.0 is installed, "mmcv', '<2.2.0', 'numpy: 2.1.0', 'torch: 2.0.1', 'motmetrics: nothing',
                 'pins.txt'):
        assert part in message
    assert 'mmdet3d' not in message


def test_pins_fit_the_requirements():
    """The tested set lies inside the ranges that users may have."""
    from packaging.requirements import Requirement

    def read(name):
        lines = (ROOT / 'requirements' / name).read_text().splitlines()
        return {r.name: r for r in map(Requirement, (x for x in lines if x and x[0] != '#'))}
    pins, ranges = read('pins.txt'), read('runtime.txt')
    for name, requirement in ranges.items():
        if name != 'packaging':
            for pin in pins[name].specifier:
                if pin.operator == '==':
                    assert requirement.specifier.contains(pin.version), name


def test_wheel_ships_configs_tools_and_model_index(tmp_path):
    command = [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    wheel = next(tmp_path.glob('georope-*.whl'))
    assert wheel.name.startswith(f'georope-{georope.__version__}-')
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {'georope/__init__.py', 'georope/rope/rays.py',
            'georope/.mim/model-index.yml', 'georope/.mim/tools/train.py',
            'georope/.mim/configs/petr/petr-urope_r50_8xb2-24e_nus-3d.py',
            'georope/.mim/configs/_base_/models/petr_r50.py'} <= names
    assert not any(name.startswith(('projects/', 'tests/')) for name in names)


def test_editable_install_has_mim_links():
    mim = ROOT / 'projects/georope/.mim'
    assert (mim / 'configs/toy/petr_toy.py').exists() and (mim / 'model-index.yml').exists()
