"""georope: rotary position encodings between image tokens and 3D queries, for mmdet3d 1.4.

``georope.rope``, the method, needs torch alone. Everything else is registered under the scope ``georope`` as soon as
mmengine meets a name such as ``georope.PETR``: it imports ``georope.registry``, which checks the installed versions and
knows where the classes are. ``custom_imports = dict(imports=['georope'])`` in a config is allowed but not needed.
"""
from georope.version import __version__

__all__ = ['__version__']
