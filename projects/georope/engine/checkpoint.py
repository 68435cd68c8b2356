"""Reading checkpoints so that no file can run code: always ``torch.load(weights_only=True)``.

torch >= 2.6 does so by default, and then refuses what mmengine 0.10.7 saves: its log history is pickled as
``HistoryBuffer`` objects with numpy arrays. Two things make resuming and testing work without giving up safe loading:
``PlainCheckpointHook`` leaves that history out, so that our files hold plain data only and load with any torch >= 2.1
and any tool; and the loader here allows those few classes by name, for files that mmengine wrote without the hook
(torch >= 2.5, which has ``safe_globals``). It replaces mmengine's loader of local files, so it serves ``--resume``,
``load_from``, ``init_cfg=dict(type='Pretrained')`` and mmdet3d's own tools alike.
"""
from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader


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


@CheckpointLoader.register_scheme(prefixes='', force=True)
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
