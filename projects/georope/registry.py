"""Registries of scope ``georope``, children of mmdet3d's: a config says ``type='georope.PETR'``.

A scope of our own keeps every name apart from mmdet3d's ``projects/PETR``, in whatever order both are imported.
"""
from georope.version import check_requirements

check_requirements()  # here and not in georope itself, whose method needs torch alone

from mmdet3d import registry as mmdet3d  # noqa: E402
from mmengine.registry import Registry  # noqa: E402


def _child(name: str, parent: Registry, *locations: str) -> Registry:
    registry = Registry(name, parent=parent, scope='georope', locations=list(locations))
    # mmengine looks for a scope among the children of the registry it starts from, then among the root's: known to the
    # root as well, 'georope.X' resolves whatever the default scope is.
    parent.parent._add_child(registry)
    return registry


MODELS = _child('model', mmdet3d.MODELS, 'georope.models')
TASK_UTILS = _child('task util', mmdet3d.TASK_UTILS, 'georope.models')
DATASETS = _child('dataset', mmdet3d.DATASETS, 'georope.datasets')
TRANSFORMS = _child('transform', mmdet3d.TRANSFORMS, 'georope.datasets')
DATA_SAMPLERS = _child('data sampler', mmdet3d.DATA_SAMPLERS, 'georope.datasets')
METRICS = _child('metric', mmdet3d.METRICS, 'georope.evaluation')
OPTIM_WRAPPER_CONSTRUCTORS = _child('optimizer wrapper constructor', mmdet3d.OPTIM_WRAPPER_CONSTRUCTORS,
                                    'georope.engine')
HOOKS = _child('hook', mmdet3d.HOOKS, 'georope.engine', 'georope.visualization')
