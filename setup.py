"""Installs ``projects/georope`` as ``georope``, with configs, tools and model-index.yml under ``georope/.mim``."""
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = ('configs', 'tools', 'model-index.yml')


class BuildWithMim(build_py):
    """Ships what openmim looks for: copied into a wheel, linked in an editable install."""

    def run(self):
        super().run()
        package = ROOT / 'projects/georope' if self.editable_mode else Path(self.build_lib).resolve() / 'georope'
        mim = package / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in SHIPPED:
            if self.editable_mode:
                (mim / name).symlink_to(ROOT / name)
            elif (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy2(ROOT / name, mim / name)


def requirements(name: str) -> list:
    lines = (ROOT / 'requirements' / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


setup(
    name='georope',
    version=re.search(r"__version__ = '(.+)'", (ROOT / 'projects/georope/version.py').read_text())[1],
    description='Rotary position encodings between image tokens and 3D queries for PETR and StreamPETR on mmdet3d 1.4',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    project_urls={'URoPE': 'https://arxiv.org/abs/2604.18747', 'WorldRoPE': 'https://arxiv.org/abs/2610.16337'},
    python_requires='>=3.9',
    package_dir={'': 'projects'},
    packages=find_packages('projects', include=['georope', 'georope.*']),
    package_data={'georope': ['py.typed']},
    install_requires=requirements('runtime.txt'),
    extras_require={'dev': requirements('dev.txt'), 'export': requirements('export.txt')},
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
