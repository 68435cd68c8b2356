"""Released PETR and StreamPETR weights in our names, shapes and box code.

Two layouts are known, by their parameter names: ``classic``, PETR of mmdet3d's projects/PETR and of megvii's repository
(which share every name), and ``stream``, PETR, FocalPETR and StreamPETR of the StreamPETR repository.

What the ten numbers of a box code mean depends on the mmdet3d that made the boxes as well ("era"), and no tensor tells:

    mmdet3d-0.x     width, length, height; angle = -yaw - pi/2.  megvii's releases (mmdet3d 0.17), and the release of
                    mmdet3d's projects/PETR (petr_vovnet_gridmask_p4_800x320-e2191752: trained with the old boxes).
    projects-petr   length, width, height; angle = -yaw - pi/2.  Trained with projects/PETR since 19 January 2023.
    mmdet3d-1.x     length, width, height; angle = yaw.  The StreamPETR repository; megvii's code on new boxes.

A third layout, ``eva02``, is a backbone alone, for ``EvaViT``: EVA-02's detectors (eva02_L_coco_det_sys_o365.pth of
Yuxin-CV/EVA-02), as released or with StreamPETR's names.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from georope.messages import some

ERAS = ('mmdet3d-0.x', 'projects-petr', 'mmdet3d-1.x')
HEAD = 'pts_bbox_head.'
MARKS = {
    'classic': [HEAD + name for name in ('code_weights', 'input_proj.weight', 'adapt_pos3d.0.weight')],
    'stream': [HEAD + name for name in ('code_weights', 'coords_d', 'memory_embed.0.weight')],
}
# EVA-02's backbone in detectors: what its names begin with, and its names that timm changed.
EVA_PREFIXES = ('backbone.net.', 'img_backbone.')
EVA_MARK = 'blocks.0.attn.q_bias'
EVA_NAMES = {'mlp.w1.': 'mlp.fc1_g.', 'mlp.w2.': 'mlp.fc1_x.', 'mlp.w3.': 'mlp.fc2.', 'mlp.ffn_ln.': 'mlp.norm.',
             'attn.q_bias': 'attn.q_proj.bias', 'attn.v_bias': 'attn.v_proj.bias'}
# Rows of the last layer that regress x, y, z and the three logarithms of sizes, as the sources order them.
CENTRE_ROWS = {'classic': (0, 1, 4), 'stream': (0, 1, 2)}
SIZE_ROWS = {'classic': (2, 3, 5), 'stream': (3, 4, 5)}
# Frozen parameters of the sources and the buffers of our head that have to agree with them.
FROZEN = {'pc_range': 'pc_range', 'position_range': 'position_range', 'coords_d': 'depths', 'code_weights': None,
          'match_costs': None}
# What a model may have without a source having it, or the other way round, and still be the same detector.
OPTIONAL = re.compile(r'img_roi_head\.|pts_bbox_head\.((self_)?encoding|token_encoder)\.|.*\.num_batches_tracked$')


@dataclass
class Conversion:
    """Weights for our model and what became of every tensor.

    Attributes:
        state_dict: tensors by our names.
        layout, era: what the source was taken for.
        matched: names of tensors taken as they are.
        converted: name -> what was done.
        missing: names of our model that the source does not have.
        left: name of the source -> why our model has no such tensor.
        notes: what else to know.
    """

    layout: str
    era: str | None
    state_dict: dict[str, Tensor] = field(default_factory=dict)
    matched: list[str] = field(default_factory=list)
    converted: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def report(self) -> str:
        """Text with the counts, and all names but those of matched tensors."""
        boxes = f', boxes of {self.era}' if self.era else ''
        lines = [f'layout {self.layout}{boxes}', f'matched: {len(self.matched)} tensors']
        for what, names in (('converted', self.converted), ('missing', self.missing), ('left', self.left)):
            lines.append(f'{what}: {len(names)} tensors')
            lines += [f'    {name}' + (f': {names[name]}' if isinstance(names, dict) else '') for name in names]
        return '\n'.join(lines + self.notes)


def find_layout(weights: Mapping[str, Tensor]) -> str:
    """'classic' or 'stream'.

    Raises:
        ValueError: if it is neither.
    """
    for layout, marks in MARKS.items():
        if all(mark in weights for mark in marks):
            return layout
    if f'{HEAD}code_weights' not in weights and any(name.startswith(HEAD) for name in weights):
        raise ValueError(f'there is no {HEAD}code_weights in the checkpoint, which every release has: it is ours or '
                         'converted already')
    raise ValueError('unknown layout: none of PETR (mmdet3d, megvii) or PETR, StreamPETR (StreamPETR repository); '
                     + '; '.join(f'{layout} needs {", ".join(marks)}' for layout, marks in MARKS.items())
                     + f'. The checkpoint has {some(list(weights))}. Backbone weights alone need no conversion: '
                     'init_cfg=dict(type="Pretrained", checkpoint=..., prefix=...)')


def find_era(layout: str, meta: Mapping) -> str:
    """The era of the boxes as far as layout and ``meta`` of the checkpoint tell.

    Raises:
        ValueError: if they do not.
    """
    if layout == 'stream':
        return 'mmdet3d-1.x'
    if str(meta.get('mmdet3d_version', '')).startswith('0.'):
        return 'mmdet3d-0.x'
    raise ValueError(
        'the checkpoint does not tell how it codes boxes; say it with --box-era: mmdet3d-0.x for the releases of '
        "megvii and of mmdet3d's projects/PETR (e2191752), projects-petr for weights trained with projects/PETR since "
        '19 January 2023, mmdet3d-1.x for code of megvii trained on boxes of mmdet3d >= 1.0. A wrong one turns boxes '
        'by 90 degrees or swaps length and width (mAOE above 1, mASE about 0.7)')


def box_rows(layout: str, era: str) -> tuple[list[int], list[int]]:
    """Rows of the source's last layer for each number of ``models.box_code``, and their signs."""
    first, second, height = SIZE_ROWS[layout]
    sizes = (second, first, height) if era == 'mmdet3d-0.x' else (first, second, height)
    # sin(yaw) = -cos(-yaw - pi/2), cos(yaw) = -sin(-yaw - pi/2)
    angle, sign = ((6, 7), 1) if era == 'mmdet3d-1.x' else ((7, 6), -1)
    return [*CENTRE_ROWS[layout], *sizes, *angle, 8, 9], [1] * 6 + [sign] * 2 + [1] * 2


def convert(weights: Mapping[str, Tensor], model: nn.Module, era: str | None = None,
            meta: Mapping | None = None) -> Conversion:
    """Fit released weights to a model of ours.

    Args:
        weights: of ``read_weights``.
        model: the detector they are for.
        era: one of ``ERAS``; None finds it.
        meta: of the checkpoint.

    Raises:
        ValueError: if layout or era are unknown, or the weights are those of another model: other names, shapes,
            ranges, or branches that differ from layer to layer; names the tensors.
    """
    for prefix in EVA_PREFIXES:
        if prefix + EVA_MARK in weights:
            return _convert_eva(weights, prefix, model)
    layout = find_layout(weights)
    era = era or find_era(layout, meta or {})
    result = Conversion(layout, era)
    head = model.get_submodule('pts_bbox_head')
    if layout == 'stream' and not head.compat:
        result.notes.append('note: these weights were trained with known bugs of the reference that '
                            'model.pts_bbox_head.compat=True repeats; without it their results differ a little')
    target = model.state_dict()
    rest = dict(weights)
    _drop_frozen(rest, head, result)
    _drop_aliases(rest, target, result)
    result.left |= {name: 'not in this model' for name in rest if name not in target}
    result.missing = [name for name in target if name not in rest]
    _refuse('the model has no place for', [name for name in rest if name not in target and not OPTIONAL.match(name)])
    _refuse('the checkpoint lacks', [name for name in result.missing if not OPTIONAL.match(name)])
    for name, expected in target.items():
        if name in rest:
            value, change = _adapt(name, rest[name], expected, layout, era)
            if value.shape != expected.shape:
                raise ValueError(f'{name} has the shape {tuple(rest[name].shape)}, the model wants '
                                 f'{tuple(expected.shape)}: the config is not that of the checkpoint')
            result.state_dict[name] = value
            if change:
                result.converted[name] = change
            else:
                result.matched.append(name)
    return result


def _convert_eva(weights: Mapping[str, Tensor], prefix: str, model: nn.Module) -> Conversion:
    """The backbone of a detector with EVA-02, whose names begin with ``prefix``."""
    result = Conversion('eva02', None)
    target = {name: value for name, value in model.state_dict().items() if name.startswith('img_backbone.')}
    for name, value in weights.items():
        ours = 'img_backbone.vit.' + name.removeprefix(prefix)
        for theirs, timms in EVA_NAMES.items():
            ours = ours.replace(theirs, timms)
        if not name.startswith(prefix) or '.rope' in ours or '.adapter.' in ours:
            result.left[name] = 'no part of the backbone, or a constant of its rotary code'
            continue
        change = 'renamed' if ours.removeprefix('img_backbone.vit.') != name.removeprefix(prefix) else ''
        if ours == 'img_backbone.vit.pos_embed' and ours in target and value.shape[1] == target[ours].shape[1] + 1:
            value, change = value[:, 1:], 'without the class token'
        if ours not in target or value.shape != target[ours].shape:
            raise ValueError(f'{name} has the shape {tuple(value.shape)}; the config wants img_backbone=dict('
                             'type="georope.EvaViT", ...) of the same width and depth, with '
                             f'{tuple(target[ours].shape) if ours in target else "no such tensor"} here')
        result.state_dict[ours] = value.to(target[ours].dtype).contiguous()
        if change:
            result.converted[ours] = change
        else:
            result.matched.append(ours)
    result.missing = [name for name in target if name not in result.state_dict]
    _refuse('the checkpoint lacks', result.missing)
    result.notes.append('the backbone alone: model.img_backbone.init_cfg=dict(type="Pretrained", checkpoint=OUT, '
                        'prefix="img_backbone.")')
    return result


def _adapt(name: str, value: Tensor, expected: Tensor, layout: str, era: str) -> tuple[Tensor, str]:
    """One tensor for our model, and what was done, in words."""
    changes = []
    if value.dim() == 4 and expected.dim() == 2 and value.shape[2:] == (1, 1):
        value = value.flatten(1)
        changes.append('1x1 convolution as linear layer')
    if layout == 'classic' and name == f'{HEAD}adapt_pos3d.0.weight':
        # Each coordinate's sines stand before its cosines there, here they alternate.
        value = value.unflatten(1, (3, 2, -1)).transpose(2, 3).flatten(1)
        changes.append('sine and cosine channels interleaved')
    if re.fullmatch(rf'{HEAD}reg_branches\.\d+\.4\.(weight|bias)', name):
        rows, signs = box_rows(layout, era)
        if rows != sorted(rows):
            value = value[rows] * value.new_tensor(signs).view(-1, *[1] * (value.dim() - 1))
            changes.append(f'box code rows {rows}, signs {signs}')
    if value.dtype != expected.dtype:
        changes.append(f'{value.dtype} to {expected.dtype}')
    return value.to(expected.dtype).contiguous(), ', '.join(changes)


def _drop_frozen(weights: dict[str, Tensor], head: nn.Module, result: Conversion) -> None:
    """Take constants out of ``weights``; those that define the geometry must agree with the head's."""
    for name, buffer in FROZEN.items():
        value = weights.pop(HEAD + name, None)
        if value is None:
            continue
        result.left[HEAD + name] = f'constant, {[round(x, 4) for x in value.tolist()[:10]]}'
        if buffer is not None:
            ours = getattr(head, buffer).cpu()
            if value.shape != ours.shape or not torch.allclose(value.float(), ours, rtol=1e-5, atol=1e-5):
                raise ValueError(f'{HEAD}{name} is {value.tolist()}, in the config {ours.tolist()}: the weights were '
                                 'trained for another space')


def _drop_aliases(weights: dict[str, Tensor], target: Mapping[str, Tensor], result: Conversion) -> None:
    """Take out branches of more layers than the model has: one branch serves all layers, under six names."""
    for name in [name for name in weights if re.match(rf'{HEAD}(cls|reg)_branches\.', name)]:
        first = re.sub(r'_branches\.\d+\.', '_branches.0.', name)
        if first not in weights or not torch.equal(weights[name], weights[first]):
            raise ValueError(f'{name} differs from {first}: branches that layers do not share are unknown here')
        if name not in target and first in target:
            result.left[name] = 'another name of layer 0'
    for name in result.left:
        weights.pop(name, None)


def _refuse(what: str, names: list[str]) -> None:
    if names:
        raise ValueError(f'{what} {len(names)} tensors ({some(names)}): the config is not that of the checkpoint, or '
                         'it comes from a model that is unknown here')
