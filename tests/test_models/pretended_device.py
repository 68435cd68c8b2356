"""A device that only pretends to be a GPU, on any machine: it counts where the host waits for it.

Within ``PretendedDevice`` tensors may be sent to ``'cuda'``. They are then ``DeviceTensor``, which compute on a CPU
tensor that only they know, say that they are on ``cuda:0``, and refuse to meet tensors of the CPU. Counted, by file
and line, is what makes a host wait for a GPU:

- a value read back: ``item``, ``bool``, ``tolist``, ``.cpu()``;
- a copy to the device, unless from pinned memory and ``non_blocking``; also the hidden ones of ``torch.tensor(...,
  device=)``, ``new_tensor`` and of index lists;
- a size that depends on values: ``nonzero``, boolean indices, ``unique``, ``repeat_interleave`` by a tensor;
- checks of an error code, as in ``torch.linalg.inv``.

Counted too are the float64 elements that operations write (views are free).

Not seen: waits inside a CUDA kernel's launcher (some of ``torch.linalg``'s, the allocator when memory runs out), a
stream's or an event's ``synchronize``, collectives, and what runs outside the context, like mmengine's hooks.
"""
from __future__ import annotations

import sys
import sysconfig
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CPU = torch.device('cpu')
DEVICE = torch.device('cuda', 0)
META = torch.device('meta')  # what torch's C++ believes: autograd asks no driver for it

aten = torch.ops.aten
READS = {aten._local_scalar_dense: 'item', aten.nonzero: 'nonzero', aten.masked_select: 'boolean index',
         aten._unique2: 'unique', aten.unique_dim: 'unique', aten.unique_consecutive: 'unique',
         aten.bincount: 'bincount', aten.equal: 'equal', aten.is_nonzero: 'item',
         aten._linalg_check_errors: 'linalg error check'}
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
COPIES = (aten._to_copy, aten.copy_, aten.copy)
JOINS = (aten.cat, aten.stack)  # take no number of the CPU either
SITE_PACKAGES = Path(sysconfig.get_paths()['purelib'])
ROOT = Path(__file__).resolve().parents[2]


class DeviceTensor(torch.Tensor):
    """A tensor of the pretended device; ``host`` holds its values."""

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> DeviceTensor:
        host = host.resolve_conj().resolve_neg()  # the wrapper has no such flags
        self = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device=META)
        self.host = host
        return self

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    def __repr__(self) -> str:
        return f'DeviceTensor({self.host})'

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f'{function} on the pretended device outside its context')


class PretendedDevice:
    """Context in which ``'cuda'`` is the pretended device.

    Attributes:
        waits: Counter of (kind, place).
        float64: Counter of places, elements that operations wrote there.
    """

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.float64: Counter[str] = Counter()

    def __enter__(self) -> PretendedDevice:
        self._stack = ExitStack()
        for context in (_Dispatch(self), _Functions(self), warnings.catch_warnings()):
            self._stack.enter_context(context)
        warnings.filterwarnings('ignore', '.*CUDA is not available.*')  # of torch.autocast
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    def clear(self) -> None:
        for counter in (self.waits, self.float64):
            counter.clear()

    @property
    def count(self) -> int:
        """How often the host waited."""
        return self.waits.total()

    def report(self) -> str:
        """The waits, one line per kind and place."""
        return '\n'.join([f'{self.count} waits', *(f'{count:4} {kind:20} {place}' for (kind, place), count
                                                   in sorted(self.waits.items(), key=lambda item: item[0][::-1]))])

    def wait(self, kind: str) -> None:
        self.waits[kind, _place()] += 1


class _Functions(TorchFunctionMode):
    """Below here torch would ask for a real CUDA: what names a device or memory."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, '__name__', '')
        first = args[0] if args else None
        if function is torch.device or name == '_parse_to':  # of a module's ``to``
            return function(*args, **kwargs)
        if name in ('tensor', 'as_tensor') and function is getattr(torch, name, None):
            target = kwargs.pop('device', None)
            made = function(*args, **kwargs)
            return made.to(META) if _is_device(target) and not isinstance(made, DeviceTensor) else made
        if name == 'pin_memory':
            return _pin(first)
        if isinstance(first, DeviceTensor):
            if name == 'tolist':
                self.device.wait(name)
                return first.host.tolist()
            if name in ('numpy', '__array__'):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
            if name == 'new_tensor':
                kwargs.setdefault('dtype', first.dtype)
                return torch.tensor(*args[1:], **kwargs).to(META)
            if name == '__format__':
                self.device.wait('item')
                return format(first.host, *args[1:])
        if name == 'cuda':
            return first.to(META, *args[1:], **kwargs)
        if kwargs.pop('pin_memory', False):
            return _pin(function(*args, **kwargs))
        args, kwargs = tree_map(lambda x: META if _is_device(x) else x, (args, kwargs))
        return function(*args, **kwargs)


class _Dispatch(TorchDispatchMode):
    """Runs operations on the values and looks at what they are."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        packet = function.overloadpacket
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        inside = [x for x in tensors if isinstance(x, DeviceTensor)]
        target = kwargs.get('device')
        stays = bool(inside) if target is None else target.type == 'meta'
        if packet in COPIES:
            source = args[1] if packet is not aten._to_copy else args[0]
            if packet is not aten._to_copy:
                stays = isinstance(args[0], DeviceTensor)
            came = isinstance(source, DeviceTensor)
            if came and not stays:
                self.device.wait('copy to host')
            elif stays and not came and not (hasattr(source, 'pinned') and (kwargs.get('non_blocking') or args[2:])):
                self.device.wait('copy to device')
        elif inside:
            self._look(packet, args, tensors, len(inside) < len(tensors))
        if packet is aten._fused_sdp_choice:
            return 0  # the plain one; the others are named after their device
        if stays and target is not None:
            kwargs['device'] = CPU
        hosts = {id(x.host): x for x in inside}
        results = function(*tree_map(_host, args), **tree_map(_host, kwargs))
        if not stays:
            return results
        self._count_float64(results, function)
        # What an in-place operation returns is what it was given.
        return tree_map(lambda x: hosts.get(id(x)) if id(x) in hosts else DeviceTensor(x)
                        if isinstance(x, torch.Tensor) else x, results)

    def _look(self, packet, args, tensors, mixed: bool) -> None:
        if packet in READS:
            self.device.wait(READS[packet])
        elif packet is aten.repeat_interleave and len(tensors) == len(args) == 1:
            self.device.wait('repeat_interleave')
        elif packet in INDEXING:
            indices = [x for x in args[1] if x is not None]
            masks = [x for x in indices if x.dtype in (torch.bool, torch.uint8)]
            fills = packet is not aten.index and len(masks) == len(indices) == 1 and args[2].numel() == 1
            if masks and not fills:  # a single number is filled in without counting
                self.device.wait('boolean index')
            for _ in range(sum(not isinstance(x, DeviceTensor) for x in indices)):
                self.device.wait('index of the host')
            mixed = not isinstance(args[0], DeviceTensor) or any(
                x.dim() and not isinstance(x, DeviceTensor) for x in args[2:3])
        elif mixed:
            mixed = packet in JOINS or any(x.dim() and not isinstance(x, DeviceTensor) for x in tensors)
        if mixed:
            raise RuntimeError(f'{packet}: tensors on the CPU and on the pretended device, at {_place()}')

    def _count_float64(self, results, function) -> None:
        views = any(returned.alias_info for returned in function._schema.returns) and not function._schema.is_mutable
        elements = sum(x.numel() for x in tree_flatten(results)[0]
                       if isinstance(x, torch.Tensor) and x.dtype == torch.float64)
        if elements and not views and function.overloadpacket is not aten._unsafe_view:
            self.device.float64[_place()] += elements


def _host(x):
    return x.host if isinstance(x, DeviceTensor) else x


def _pin(x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, DeviceTensor):
        raise RuntimeError('only tensors of the CPU can be pinned')
    pinned = x.clone()
    pinned.pinned = True
    return pinned


def _is_device(x) -> bool:
    return (isinstance(x, str) and x.split(':')[0] == 'cuda') or (isinstance(x, torch.device) and x.type == 'cuda')


def _place() -> str:
    """The innermost line of Python outside torch, and the line of ours that led there."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        ours = path.is_relative_to(ROOT) and not path.is_relative_to(SITE_PACKAGES) and path != Path(__file__).resolve()
        theirs = path.is_relative_to(SITE_PACKAGES) and path.relative_to(SITE_PACKAGES).parts[0] != 'torch'
        if ours or theirs and not lines:
            place = path.relative_to(ROOT if ours else SITE_PACKAGES)
            lines.append(f'{place}:{frame.f_lineno}:{frame.f_code.co_name}')
        if ours:
            break
        frame = frame.f_back
    return ' < '.join(lines)


def pretended(values: torch.Tensor) -> DeviceTensor:
    """A tensor on the pretended device, without a wait."""
    return DeviceTensor(values)
