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
    """USERS A5.77: no repository root on the path is needed."""
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
    """USERS A5.78: in either order, from any default scope."""
    code = order.format(georope='import georope\n', petr=PROJECTS_PETR) + (
        'from mmengine.registry import MODELS, DefaultScope\n'
        "for scope in ('mmengine', 'mmdet', 'mmdet3d', 'georope'):\n"
        '    with DefaultScope.overwrite_default_scope(scope):\n'
        "        print(MODELS.build(dict(type='georope.NoEncoding')).__class__.__name__)\n"
        'import mmdet3d.registry\n'
        "for name in ('georope.PETR', 'PETR'):\n"
        '    print(mmdet3d.registry.MODELS.get(name).__module__)')
    assert python(code, tmp_path).split() == ['NoEncoding'] * 4 + ['georope.models.petr', '__main__']


def test_version_gate_names_every_package_that_does_not_fit(monkeypatch):
    """USERS A5.75."""
    check_requirements()
    real = metadata.version

    def version(name):
        if name == 'motmetrics':
            raise metadata.PackageNotFoundError(name)
        return {'mmcv': '2.2.0', 'numpy': '2.1.0', 'torch': '2.0.1+cu118'}.get(name) or real(name)
    monkeypatch.setattr(metadata, 'version', version)
    with pytest.raises(ImportError) as error:
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
