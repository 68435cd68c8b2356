"""Parity with PETR of mmdet3d's projects/PETR: fixture petr_mmdet3d, its weights converted to ours."""
import json

import numpy as np
import pytest
import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.structures import InstanceData
from model_factory import RECIPE, features, sample, seeded
from torch import nn

from georope.models.box_code import to_lidar_boxes
from georope.models.conversion import box_rows, convert
from georope.registry import MODELS

LOGITS, BOXES = 5e-4, 5e-3
ERA = 'projects-petr'
ROWS, SIGNS = box_rows('classic', ERA)
CODE_WEIGHTS = (1, ) * 8 + (0.2, 0.2)
SIZES = {'full': (128, 352), 'padded': (112, 320)}


@pytest.fixture(scope='module')
def golden(golden_folder):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden_folder / 'petr_mmdet3d.npz').items()}
    return json.loads((golden_folder / 'petr_mmdet3d.json').read_text()), arrays


@pytest.fixture
def head(golden):
    head = MODELS.build(RECIPE | dict(type='georope.PETRClassicHead', num_query=50, decoder=dict(dropout=0.0),
                                      code_weights=CODE_WEIGHTS))
    weights = {}
    for name, shape, rule in golden[0]['state']:
        value = torch.tensor(CODE_WEIGHTS) if rule == 'fixed' else seeded(name, shape, rule)
        for layer in range(6 if '_branches.0.' in name else 1):
            weights['pts_bbox_head.' + name.replace('_branches.0.', f'_branches.{layer}.')] = value
    model = nn.ModuleDict(dict(pts_bbox_head=head))
    conversion = convert(weights, model, ERA)
    assert not conversion.missing and list(conversion.left) == ['pts_bbox_head.code_weights']
    model.load_state_dict(conversion.state_dict)
    return head.eval()


@pytest.fixture
def image_features(golden):
    tensor = seeded('petr_mmdet3d.img_feats', (1, 6, 256, 8, 22), 'normal*1')
    assert torch.equal(tensor.flatten()[:8], golden[1]['feat_check'])
    return tensor


def data_sample(golden, size, objects=slice(None)):
    arrays = golden[1]
    result = Det3DDataSample()
    result.set_metainfo(dict(token='golden', lidar2img=arrays['lidar2img'].numpy(), img_shape=[SIZES[size]] * 6))
    result.gt_instances_3d = InstanceData(
        bboxes_3d=to_lidar_boxes(arrays['gt_center'][objects].clone()), labels_3d=arrays['gt_labels'][objects])
    return result


def ours(codes):
    """The reference's box codes in our order."""
    return codes[..., ROWS] * codes.new_tensor(SIGNS)


def close(actual, expected, atol):
    torch.testing.assert_close(actual.detach().squeeze(), expected.squeeze(), atol=atol, rtol=0)


@pytest.mark.parametrize('size', SIZES)
def test_eval(head, golden, image_features, size):
    arrays = golden[1]
    seen = {}
    for name in ('position_encoder', 'query_embedding'):
        getattr(head, name).register_forward_hook(
            lambda module, args, output, name=name: seen.update({name: output, name + '.input': args[0]}))
    head.transformer['decoder'].register_forward_pre_hook(lambda module, args: seen.update(position=args[3]))

    def channels_first(tokens):
        return tokens[0].unflatten(0, (6, 8, 22)).permute(0, 3, 1, 2)

    metas = [data_sample(golden, size).metainfo]
    with torch.no_grad():
        results = head(image_features, metas)
    close(channels_first(seen['position'])[:, :, ::2, ::3], arrays[f'{size}.pos_embed_total'], LOGITS)
    close(channels_first(seen['position_encoder'])[:, :, ::2, ::3], arrays['pos3d_embed'], LOGITS)
    close(channels_first(seen['position_encoder.input'])[:, :, ::4, ::11], arrays['pos3d_input_sub'], LOGITS)
    close(seen['query_embedding'][0], arrays['query_embed'], LOGITS)
    close(results['logits'], arrays[f'{size}.all_cls_scores'], LOGITS)
    close(results['codes'], ours(arrays[f'{size}.all_bbox_preds']), BOXES)
    padding = head._embed_image(image_features, metas, None).padding
    assert torch.equal(arrays[f'{size}.key_padding_mask'].bool().flatten(),
                       torch.zeros(1056, dtype=torch.bool) if padding is None else padding[0])


@pytest.mark.parametrize('size', SIZES)
def test_decoded_boxes(head, golden, size):
    arrays = golden[1]
    (boxes, scores, labels), = head.bbox_coder.decode(
        arrays[f'{size}.all_cls_scores'][-1], ours(arrays[f'{size}.all_bbox_preds'][-1]))
    expected = arrays[f'{size}.dec_boxes']
    actual = to_lidar_boxes(boxes).tensor
    turn = (actual[:, 6] - expected[:, 6] + torch.pi) % (2 * torch.pi) - torch.pi
    close(turn, torch.zeros(300), 1e-5)
    close(actual[:, [0, 1, 2, 3, 4, 5, 7, 8]], expected[:, [0, 1, 2, 3, 4, 5, 7, 8]], 1e-5)
    close(scores, arrays[f'{size}.dec_scores'], 1e-6)
    assert torch.equal(labels, arrays[f'{size}.dec_labels'])


@pytest.mark.parametrize('case', ['full.gt26', 'full.gt51', 'padded.gt26', 'padded.gt51'])
def test_training(head, golden, image_features, case):
    info, arrays = golden
    size, objects = case.split('.')
    losses = head.train().loss(image_features, [data_sample(golden, size, slice(None, None, 1 + (objects == 'gt26')))])
    assert set(losses) == set(info['losses'][case])
    for name, value in info['losses'][case].items():
        assert losses[name].item() == pytest.approx(value, rel=1e-3), name
    if case == 'full.gt26':
        sum(losses.values()).backward()
        gradients = {name: parameter.grad.norm() for name, parameter in head.named_parameters()}
        assert set(gradients) == set(info['grad_norm_names'])
        for name, expected in zip(info['grad_norm_names'], arrays['grad_norm']):
            if expected >= 0.05:
                assert gradients[name] == pytest.approx(expected.item(), rel=1e-2), name


def tiny(**options):
    torch.manual_seed(0)
    config = RECIPE | dict(type='georope.PETRClassicHead', in_channels=16, embed_dims=48, num_query=12,
                           decoder=dict(num_layers=2, num_heads=4, feedforward_channels=32))
    head = MODELS.build(config | options)
    head.init_weights()
    return head


def test_attention_weights_are_dropped_everywhere():
    assert [[attention.attn.dropout for attention in layer.attentions]
            for layer in tiny().transformer['decoder'].layers] == [[0.1, 0.1]] * 2


def test_padding_does_not_change_the_predictions():
    """What lies in padded cells has no effect, and a sample does not depend on the padding."""
    head, data = tiny().eval(), sample(size=(48, 80))
    small = features(size=(48, 80))
    padded = nn.functional.pad(small, (0, 1, 0, 1), value=100.0)
    with torch.no_grad():
        a, b = head(small, [data.metainfo]), head(padded, [data.metainfo])
    torch.testing.assert_close(b['logits'], a['logits'], atol=1e-4, rtol=1e-4)


def test_without_position_embedding_none_is_built():
    head = tiny(position_embedding=False, encoding=dict(type='georope.URoPE', num_heads=4, head_dim=12))
    assert not any('pos' in name for name, _ in head.named_children())
    assert head(features(), [sample().metainfo])['logits'].isfinite().all()


def test_absolute_ray_embedding_is_added():
    """What every PETR head does for encodings that have one."""
    head, data = tiny(encoding=dict(type='georope.Pluecker')).eval(), sample()
    with_rays = head(features(), [data.metainfo])['logits']
    nn.init.zeros_(head.encoding.mlp[-1].weight)
    assert (head(features(), [data.metainfo])['logits'] - with_rays).abs().max() > 1e-4


def test_no_choice_of_tokens():
    with pytest.raises(ValueError, match='attends to all image tokens'):
        tiny()(features(), [sample().metainfo], tokens=torch.zeros(1, 3, dtype=torch.int64))
