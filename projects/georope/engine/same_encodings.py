"""Whether a checkpoint was trained with the encodings that a config has.

Encodings have few parameters or none, so tensors alone cannot distinguish them. Checkpoints hold the text of their
config. It is parsed, never executed. The encodings in it are built and compared by those attributes that, as their
classes declare, decide their function (``PositionEncoding.decisive``): how a config is written does not matter.
"""
from __future__ import annotations

import ast
from typing import Any

import torch
from torch import nn

from georope.registry import MODELS
from georope.rope import NoEncoding, PositionEncoding

KEYS = ('encoding', 'self_encoding')
SHAPE = ('num_heads', 'head_dim', 'num_layers')


def other_encodings(trained: str, current: str, model: nn.Module) -> list[str]:
    """A description of each encoding that differs.

    Args:
        trained: text of a checkpoint's config. Nothing is compared where it cannot be read or has no model.
        current: text of the config in use.
        model: built from it; its encodings tell heads and layers.
    """
    trained, current = _encodings(trained), _encodings(current)
    if trained is None or current is None:
        return []
    told = []
    for path in sorted({*trained, *current}):
        (old, old_text), (new, new_text) = (found.get(path, (None, '')) for found in (trained, current))
        if _plain(old) == _plain(new):
            continue
        shape = _shape(model, path)
        old, new = _describe(old, shape), _describe(new, shape)
        if old != new:
            differing = ['type'] if old.get('type') != new.get('type') else sorted(
                name for name in {*old, *new} if old.get(name) != new.get(name))
            told.append(f"trained with {old_text or 'no ' + path.rpartition('.')[2]}, the config has "
                        f"{new_text or 'none'} (other {', '.join(differing)})")
    return told


def _encodings(text: str) -> dict[str, tuple[dict | None, str]] | None:
    """{path within the model: (config, its text)} of a config's text; None where it has no model."""
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return None
    models = [node.value for node in statements
              if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'model']
    return dict(_found(models[-1], ())) if models else None


def _found(node: ast.expr, path: tuple[str, ...]):
    for key, value in _items(node):
        if key in KEYS:
            config = _value(value)
            yield '.'.join((*path, key)), (config, '' if config is None else f'{key}={ast.unparse(value)}')
        else:
            yield from _found(value, (*path, str(key)))


def _items(node: ast.expr) -> list[tuple[Any, ast.expr]]:
    """Keys and values of ``dict(...)`` and ``{...}``, as mmengine writes them."""
    if isinstance(node, ast.Dict):
        return [(ast.literal_eval(key), value) for key, value in zip(node.keys, node.values) if key is not None]
    if isinstance(node, ast.Call):
        return [item for keyword in node.keywords for item in (
            _items(keyword.value) if keyword.arg is None else [(keyword.arg, keyword.value)])]
    return []


def _value(node: ast.expr) -> Any:
    if isinstance(node, (ast.Dict, ast.Call)):
        return {key: _value(value) for key, value in _items(node)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:  # such as inf
        return ast.unparse(node)


def _plain(value: Any) -> Any:
    """Comparable: numbers, text and None, in lists and dicts; a parameter counts as learned, whatever its value."""
    if isinstance(value, nn.Parameter):
        return 'learned'
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value  # 5 == 5.0 in Python


def _shape(model: nn.Module, path: str) -> dict[str, int]:
    """Of the model's own encoding; the defaults where its model builds none of that name."""
    try:
        encoding = model.get_submodule(path)
    except AttributeError:
        return {}
    return {name: getattr(encoding, name) for name in SHAPE} if isinstance(encoding, PositionEncoding) else {}


def _describe(config: dict | None, shape: dict[str, int]) -> dict[str, Any]:
    """{attribute: plain value} of what is built from a config; its entries where that cannot be built, or where a class
    with arguments of its own does not declare what decides its function."""
    config = config or dict(type='georope.NoEncoding')
    try:
        with torch.random.fork_rng(devices=[]):  # a training goes on with the numbers that it would have had
            encoding = MODELS.build(dict(config), default_args=shape)
    except Exception:  # whatever an encoding of other times or of another project raises
        return _plain(config)
    if not isinstance(encoding, PositionEncoding):
        return _plain(config)
    declared = {name: _plain(value) for name, value in encoding.describe().items()}
    kind = type(encoding)
    undeclared = {} if kind.declares_all() else {key: _plain(item) for key, item in config.items() if key != 'type'}
    return dict(declared, type='none' if kind is NoEncoding else f'{kind.__module__}.{kind.__qualname__}', **{
        f'config.{key}': item for key, item in undeclared.items()})
