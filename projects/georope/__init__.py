"""georope: rotary position encodings between image tokens and 3D queries, for mmdet3d 1.4.

``custom_imports = dict(imports=['georope'])`` in a config is all that is needed: the import checks the versions around
it and registers every class under the scope ``georope``.
"""
from georope.version import __version__, check_requirements

check_requirements()

from georope import datasets, engine, evaluation, models, visualization  # noqa: E402

__all__ = ['__version__', 'datasets', 'engine', 'evaluation', 'models', 'visualization']
