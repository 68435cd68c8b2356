"""Reading checkpoints safely: always ``torch.load(weights_only=True)``, so that no file can run code; and logging how
much of a model they fill.

torch >= 2.6 does so by default, and then refuses what mmengine 0.10.7 saves: its log history is pickled as
``HistoryBuffer`` objects with numpy arrays. Two things make resuming and testing work without giving up safe loading:
``PlainCheckpointHook`` leaves that history out, so that our files hold plain data only and load with any torch >= 2.1
and any tool; and the loader here allows those few classes by name, for files that mmengine wrote without the hook
(torch >= 2.5, which has ``safe_globals``).

In the tools' processes (``install_loaders``) it replaces mmengine's loaders of local files and of addresses (https://,
torchvision://, open-mmlab://), so that it serves ``--resume``, ``load_from`` and ``init_cfg=dict(type='Pretrained')``.
mmengine's ``Pretrained`` initialiser is replaced there too: with it, a wrong prefix or another backbone
leaves random weights without a warning. Importing georope replaces nothing.
"""
from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from logging import WARNING
from pathlib import Path
from pickle import UnpicklingError
from urllib.parse import urlparse

import mmengine.runner.checkpoint
import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from mmengine.model import PretrainedInit, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from georope.messages import some

MIN_SHARE = 0.5  # of a module's tensors; a checkpoint that fills less is taken for a mistake


def _history_statistic(owner, name):
    """Stands in for ``getattr`` in a file: mmengine's history refers to its own statistics; nothing else is served."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'current', 'mean'):
        raise UnpicklingError(f'getattr({owner!r}, {name!r})')
    return getattr(HistoryBuffer, name)


# torch finds an allowed class or function under its own module and name.
_history_statistic.__module__ = 'builtins'
_history_statistic.__name__ = _history_statistic.__qualname__ = 'getattr'

_ALLOWED = [HistoryBuffer, _history_statistic, np.ndarray, np.dtype, np.core.multiarray._reconstruct,
            np.core.multiarray.scalar, *{type(np.dtype(kind)) for kind in ('f4', 'f8', 'i4', 'i8', 'bool')}]
_safe_globals = getattr(torch.serialization, 'safe_globals', lambda allowed: nullcontext())


def load_from_local(filename: str, map_location=None) -> dict:
    """Reads a local checkpoint; the name is the one that mmengine logs ("by local backend").

    Raises:
        FileNotFoundError: there is no such file.
        UnpicklingError: the file holds anything but tensors, plain values and mmengine's log history.
        RuntimeError: the file cannot be read, e.g. since it is cut short.
    """
    path = Path(filename).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'no checkpoint {path}')
    try:
        with _safe_globals(_ALLOWED):
            return torch.load(path, map_location=map_location, weights_only=True)
    except UnpicklingError as error:
        reason = str(error).rpartition('WeightsUnpickler error: ')[2].partition('\n')[0].partition('. ')[0]
        raise UnpicklingError(
            f'{path} was not loaded ({reason}): it is no checkpoint, or holds more than weights and training state, '
            'and unpickling that could run any code. If you trust its source, save the weights alone: torch.save('
            "{'state_dict': torch.load(path, weights_only=False)['state_dict']}, new_path)") from error
    except Exception as error:  # a file that is cut short fails in any layer of the reader
        raise RuntimeError(f'{path} cannot be read ({error!r:.300}); an interrupted save cuts files short') from error


def _load_url(url: str, model_dir: str | None = None, map_location=None, progress: bool = True) -> dict:
    """Stands in for torch.hub's, which mmengine takes for every address and which runs the code in a file."""
    path = Path(model_dir or Path(torch.hub.get_dir(), 'checkpoints'), Path(urlparse(url).path).name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), progress=progress)  # beside its final path, then renamed
    return load_from_local(path, map_location)


def last_checkpoint(work_dir: str) -> Path | None:
    """The checkpoint that ``--resume`` continues from; None where the work dir has none yet.

    mmengine writes its path, as seen from the directory of that run, to ``last_checkpoint`` after each complete save.
    Only the name counts here: work dirs get moved, and runs get started from elsewhere.
    """
    record = Path(work_dir) / 'last_checkpoint'
    if not record.is_file():
        return None
    path = record.with_name(Path(record.read_text().strip()).name)
    if not path.is_file():
        raise FileNotFoundError(f'{record} names {path.name}, which is not beside it; pass a checkpoint: --resume PATH')
    return path


def read_weights(checkpoint: Mapping) -> dict[str, Tensor]:
    """The tensors of a checkpoint of mmengine, mmcv or Detectron2, or of a plain dict, without the ``module.`` of DDP.

    Raises:
        ValueError: if it holds none, or one that is not finite; names the tensors.
    """
    weights = checkpoint.get('state_dict', checkpoint.get('model', checkpoint))
    weights = {name.removeprefix('module.'): value for name, value in weights.items() if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f'no tensors in the checkpoint; its entries are {sorted(map(str, checkpoint))[:10]}')
    bad = [name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if bad:
        raise ValueError(f'{len(bad)} tensors of the checkpoint are not finite: {some(bad)}')
    return weights


class CheckedPretrainedInit(PretrainedInit):
    """``init_cfg=dict(type='Pretrained', checkpoint=..., prefix=...)``: mmengine's, but logs which share of the module
    the checkpoint fills, and refuses one that fills less than half unless that is asked for.

    Args:
        checkpoint: path or address, as mmengine takes them (``torchvision://resnet50`` wants torchvision).
        prefix: what the names of the module have in front of them in the checkpoint, e.g. 'backbone.'.
        map_location: of the tensors read.
        partial: go on with a checkpoint that fills less than half, if it fills anything; the share is logged as ever.
    """

    def __init__(self, checkpoint: str, prefix: str | None = None, map_location: str = 'cpu',
                 partial: bool = False) -> None:
        super().__init__(checkpoint, prefix, map_location)
        self.partial = partial

    def __call__(self, module: nn.Module) -> None:
        weights = read_weights(CheckpointLoader.load_checkpoint(self.checkpoint, self.map_location))
        expected = {name: value.shape for name, value in module.state_dict().items()}
        prefix = f'{self.prefix.rstrip(".")}.' if self.prefix else ''
        fitting = _fitting(expected, weights, prefix)
        counted = _without_counters(expected)
        count = len(_without_counters(fitting))
        told = (f'{count} of the {len(counted)} tensors of {type(module).__name__} come from {self.checkpoint}'
                + (f' (prefix {prefix!r})' if prefix else ''))
        if count < MIN_SHARE * len(counted) and not (self.partial and count):
            raise RuntimeError(f'init_cfg: only {told}; {_better_prefix(counted, weights)}'
                               + ('; if that is meant: init_cfg=dict(..., partial=True)' if count else ''))
        module.load_state_dict(fitting, strict=False)
        depths = [_resnet_depth(names) for names in (
            {name.removeprefix(prefix) for name in weights if name.startswith(prefix)}, set(expected))]
        if None not in depths and depths[0] != depths[1]:
            print_log(f'init_cfg: {self.checkpoint} is a ResNet-{depths[0]}, the model a ResNet-{depths[1]}: the '
                      'blocks that only one of them has stay random or are not used', logger='current', level=WARNING)
        missing = [name for name in counted if name not in fitting]
        print_log(f'{told}; {len(weights) - len(fitting)} of its {len(weights)} are not used'
                  + (f'; not in it, or of another shape: {some(missing)}' if missing else ''), logger='current')
        if hasattr(module, '_params_init_info'):
            update_init_info(module, init_info=self._get_init_info())


def install_loaders() -> None:
    """Makes the safe loaders and the checked ``Pretrained`` those of this process, for every model in it."""
    CheckpointLoader.register_scheme(prefixes='', loader=load_from_local, force=True)
    mmengine.runner.checkpoint.load_url = _load_url
    WEIGHT_INITIALIZERS.register_module(name='Pretrained', module=CheckedPretrainedInit, force=True)


def _fitting(expected: Mapping[str, torch.Size], weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = {name: weights.get(prefix + name) for name in expected}
    return {name: value for name, value in found.items() if value is not None and value.shape == expected[name]}


def _without_counters(names: Mapping) -> dict:
    """Without the batch counters of batch norms, which other frameworks do not save and nothing needs."""
    return {name: value for name, value in names.items() if not name.endswith('num_batches_tracked')}


def _resnet_depth(names: set[str]) -> int | None:
    """Depth of the ResNet with these parameters, by its blocks; None for anything else."""
    blocks = [len({name.split('.')[1] for name in names if name.startswith(f'layer{stage}.')}) for stage in range(1, 5)]
    bottleneck = 'layer1.0.conv3.weight' in names
    depth = sum(blocks) * (3 if bottleneck else 2) + 2
    return depth if depth in (18, 34, 50, 101, 152) and 'conv1.weight' in names else None


def _better_prefix(expected: Mapping[str, torch.Size], weights: Mapping[str, Tensor]) -> str:
    first = next(iter(expected))
    counts = {prefix: len(_fitting(expected, weights, prefix))
              for prefix in {name[:-len(first)] for name in weights if name.endswith(first)}}
    best = max(counts, key=counts.get, default='')
    if counts.get(best, 0) < MIN_SHARE * len(expected):
        return f'it is of another model, e.g. it has {some(list(weights))}'
    return f'with prefix={best!r} it would be {counts[best]}'
