"""torch.compile: decoder and encodings in one graph without complex numbers, equal to the eager ones; and the heads."""
import copy
import sys
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from model_factory import features, metas, sample, stream_sample, tiny_head
from torch._dynamo.backends.common import aot_autograd

from georope import rope
from georope.models.decoder import PETRDecoder

sys.path.append(str(Path(__file__).resolve().parents[1] / 'test_rope'))
from cameras import rig  # noqa: E402

HEADS, WIDTH, QUERIES = 4, 8, 7
ENCODINGS = {
    'none': ('NoEncoding', {}), 'pluecker': ('Pluecker', {}), 'gta': ('GTA', {}), 'prope': ('PRoPE', {}),
    'urope': ('URoPE', {}), 'urope-mixed': ('URoPE', dict(bands='mixed', channel_wise=True)),
    'learned': ('LearnedDepth', dict(bands='mixed')), 'rayrope': ('RayRoPE', {}),
    'worldrope': ('WorldRoPE', dict(rotate_values=False)),
    'worldrope-mixed': ('WorldRoPE', dict(temperature='token', query_deviation=[1.0, 1.0, 0.5], per_layer=False,
                                          bands=dict(type='mixed', learnable=True)))}


def build(name: str, own: str):
    """A function of tensors, and those that get gradients."""
    torch.manual_seed(0)
    cls, options = ENCODINGS[name]
    encoding = getattr(rope, cls)(HEADS, WIDTH, num_layers=1, **options)
    among = getattr(rope, own)(HEADS, WIDTH)
    decoder = PETRDecoder(HEADS * WIDTH, 1, HEADS, 32, dropout=0.0)
    decoder.init_weights()
    for parameter in encoding.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    rays = rope.Rays.from_lidar2img(rig(2)[None], (2, 3), 16).to(torch.float32)
    tokens, query, points = (torch.randn(1, n, c, requires_grad=True)
                             for n, c in ((12, HEADS * WIDTH), (QUERIES, HEADS * WIDTH), (QUERIES, 3)))
    times = -torch.rand(1, QUERIES)

    def run(tokens, query, points):
        frame = encoding.prepare(rays)
        turned = among.rotate_queries(points, times)
        return decoder(query, query, tokens, encoding.embed_keys(rays), encoding.rotate_queries(points),
                       [encoding.rotate_keys(frame, tokens)], self_query_rotation=turned, self_key_rotation=turned)
    inputs = tokens, query, points
    return run, inputs, (*inputs, *encoding.parameters(), *decoder.parameters())


def real(graph, inputs):
    """A compiler that runs the graph as it is, if nothing in it is complex."""
    values = [node.meta.get('val') for node in graph.graph.nodes]
    assert not any(value.is_complex() for value in values if isinstance(value, torch.Tensor))
    return make_boxed_func(graph.forward)


def close(found, expected):
    """To 1e-5 of the greatest number; gradients that vanish in theory are noise."""
    assert (found is None) == (expected is None)
    if expected is not None:
        assert (found - expected).abs().max() <= 1e-5 * max(expected.abs().max(), 0.1)


def compare(run, compiled, inputs, leaves):
    outs = run(*inputs), compiled(*inputs)
    weights = torch.randn_like(outs[0])
    close(*reversed(outs))
    for expected, found in zip(*(torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
                                 for out in outs)):
        close(found, expected)


@pytest.mark.parametrize('name', ENCODINGS)
def test_one_graph_of_real_numbers_equals_eager(name):
    torch._dynamo.reset()
    run, inputs, leaves = build(name, 'BEVTimeRoPE' if name == 'none' else 'RoPE3D')
    compare(run, torch.compile(run, backend=aot_autograd(fw_compiler=real), fullgraph=True, dynamic=False),
            inputs, leaves)


def keys_of_worldrope():
    encoding = rope.WorldRoPE(2, 8, anchors=[5, 20], bands='mixed', num_layers=1)
    torch.nn.init.normal_(encoding.predictors[0].weight, std=0.2)
    rays = rope.Rays.from_lidar2img(rig(2)[None], (2, 3), 16).to(torch.float32)
    return lambda x: encoding.rotate_keys(encoding.prepare(rays), x), torch.randn(1, 12, 16, requires_grad=True)


def test_generated_code_equals_eager():
    """By the compiler that users get, which needs one for C++."""
    torch._dynamo.reset()
    keys, x = keys_of_worldrope()

    def run(x):
        return keys(x).apply(x.unflatten(-1, (2, 8)), tempered=True)
    compare(run, torch.compile(run, fullgraph=True, dynamic=False), (x, ), (x, ))


def test_phases_stay_in_float32_under_autocast():
    torch._dynamo.reset()
    keys, x = keys_of_worldrope()
    compiled = torch.compile(keys, backend='aot_eager', fullgraph=True, dynamic=False)
    expected = keys(x)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        found = compiled(x)
    assert found.cos.dtype == found.temperature.dtype == torch.float32
    for part in ('cos', 'sin', 'temperature'):
        close(getattr(found, part), getattr(expected, part))


def losses(head, frames):
    """Losses and gradients of frames with one object more each."""
    head.zero_grad()
    found = {}
    for frame in frames:
        new = head.loss(features(seed=frame), [stream_sample(frame=frame, num_boxes=frame + 1)])
        sum(new.values()).backward()
        found |= {f'{frame} {name}': loss.detach() for name, loss in new.items()}
    return found, [parameter.grad for parameter in head.parameters()]


MEMORY = dict(type='georope.StreamPETRHead', num_query=8, memory_len=8, topk_proposals=4, num_propagated=4)


MOVING = dict(moving_queries=True, uncertain_queries=dict(box=1.0, drift=0.3),
              token_encoder=dict(num_layers=1, feedforward_channels=32, dropout=0.0, with_cp=True))


@pytest.mark.parametrize('options,with_cp', [(MOVING, True), (MEMORY, False)], ids=['petr', 'stream'])
def test_heads_train_and_predict_alike(options, with_cp):
    torch._dynamo.reset()
    head = tiny_head(encoding=dict(type='georope.URoPE'), denoising=dict(groups=2, noise_scale=0), decoder=dict(
        num_layers=1 + with_cp, num_heads=4, feedforward_channels=32, dropout=0.0, with_cp=with_cp), **options).train()
    other = copy.deepcopy(head)
    other.compile(backend='aot_eager', fullgraph=True)
    assert [*other.state_dict()] == [*head.state_dict()]
    (expected, gradients), (found, others) = losses(head, range(2)), losses(other, range(2))
    for name, loss in expected.items():
        close(found[name], loss)
    for gradient, also in zip(gradients, others):
        close(also, gradient)
    boxes = [each.eval().predict(features(), [stream_sample()])[0].bboxes_3d.tensor for each in (head, other)]
    close(*reversed(boxes))


def test_a_copy_of_a_compiled_head_runs_with_its_own_weights():
    torch._dynamo.reset()
    head = tiny_head(denoising=None).eval()
    head.compile(backend='eager')
    clone, frame = copy.deepcopy(head), metas([sample()])
    with torch.no_grad():
        before = head(features(), frame)['logits']
        for parameter in clone.transformer.parameters():
            parameter += 0.1
        assert torch.equal(head(features(), frame)['logits'], before)
        assert (clone(features(), frame)['logits'] - before).abs().max() > 1e-3
