"""Queries that move from layer to layer, that drift with their velocities, and that are as wide as their boxes."""
import pytest
import torch
from model_factory import features, metas, sample, stream_sample, tiny_head

from georope.models import box_code
from georope.models.query_rotations import box_spreads
from georope.rope import RoPE3D, WorldRoPE

ENCODINGS = dict(encoding=dict(type='georope.WorldRoPE'), self_encoding=dict(type='georope.RoPE3D'),
                 position_embedding=False)
STREAM = dict(type='georope.StreamPETRHead', memory_len=12, topk_proposals=4, num_propagated=4)
UNCERTAIN = dict(box=1.0, drift=0.3)
kinds = pytest.mark.parametrize('stream', [False, True], ids=['petr', 'streampetr'])


def make(stream=False, **options):
    return tiny_head(**ENCODINGS | (STREAM if stream else {}) | options)


def batch(stream, frame=0):
    return [stream_sample('a', frame, 3, seed=1), stream_sample('b', frame, 1, seed=2)] if stream else [
        sample('a', 3), sample('b', 1, seed=1)]


def record(head):
    """What the decoder's layers get, in order of the calls; the results of ``forward``."""
    inputs, results, by_feat = [], [], head.loss_by_feat
    for layer in head.transformer['decoder'].layers:
        layer.register_forward_pre_hook(lambda module, args: inputs.append(args[2]))
    head.loss_by_feat = lambda *args: results.append(args[0]) or by_feat(*args)
    return inputs, results


@kinds
def test_each_layer_sees_queries_where_the_one_before_it_predicts_them(stream):
    """Denoising, learned and propagated queries, in cross- and self-attention; the memory's keys stay."""
    head = make(stream, moving_queries=True, decoder=dict(
        num_layers=3, num_heads=4, feedforward_channels=32, dropout=0.0)).train()
    for frame in range(2 if stream else 1):
        inputs, results = record(head)
        codes, predict = [], head._predict_codes
        head._predict_codes = lambda *args: codes.append(predict(*args)) or codes[-1]  # noqa: B023
        head.loss(features(2, seed=frame), batch(stream, frame))
        head._predict_codes = predict
    *moved, final = codes
    assert len(moved) == 2 and final.shape[0] == 3
    first, *later = inputs[-3:]
    for i, layer in enumerate(later):
        torch.testing.assert_close(moved[i], final[i], atol=1e-4, rtol=1e-4)
        points = moved[i][..., box_code.CENTRE].detach()
        assert torch.equal(layer.query_rotation.cos, head.encoding.rotate_queries(points).cos)
        assert not torch.equal(layer.query_rotation.cos, first.query_rotation.cos)
        num = points.shape[1]
        own = head.self_encoding.rotate_queries(points)
        assert torch.equal(layer.self_query_rotation.cos, own.cos)
        assert torch.equal(layer.self_key_rotation.cos[:, :, :num], own.cos)
        assert torch.equal(layer.self_key_rotation.cos[:, :, num:], first.self_key_rotation.cos[:, :, num:])
        assert layer.self_key_rotation.cos.shape[2] == num + 8 * stream
    assert results and 'dn_codes' in results[-1]


@kinds
@pytest.mark.parametrize('options', [dict(moving_queries=True), dict(uncertain_queries=UNCERTAIN), dict(
    moving_queries=True, uncertain_queries=UNCERTAIN)], ids=['moving', 'uncertain', 'both'])
def test_checkpoints_change_no_loss_and_no_gradient(stream, options):
    found = []
    for with_cp in (False, True):
        head = make(stream, **options).train()
        head.transformer['decoder'].with_cp = with_cp
        for frame in range(2 if stream else 1):
            torch.manual_seed(frame)  # noise of denoising
            losses = head.loss(features(2, seed=frame), batch(stream, frame))
        sum(losses.values()).backward()
        found.append((losses, {name: p.grad for name, p in head.named_parameters() if p.requires_grad}))
    assert all(torch.equal(found[0][0][name], found[1][0][name]) for name in found[0][0])
    assert all(g is not None and g.isfinite().all() for g in found[0][1].values())
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, msg=name)


def test_no_gradient_flows_through_the_places():
    """Else what is predicted would be moved to where attention likes it."""
    head = make(moving_queries=True, uncertain_queries=UNCERTAIN).train()
    head(features(1), metas([sample()]))['logits'][-1].sum().backward()
    assert all(p.grad is None for p in head.reg_branches.parameters())
    assert head.reference_points.weight.grad.abs().sum() > 0


@kinds
def test_off_and_first_layers_are_as_before(stream):
    """One layer has no layer before it, and no object of a scene's first frame has moved: bit-equal to without."""
    one = dict(num_layers=1, num_heads=4, feedforward_channels=32, dropout=0.0)
    options = dict(moving_queries=True, uncertain_queries=UNCERTAIN) | (dict(motion_in_time=True) if stream else {})
    results = []
    for head in (make(stream, decoder=one).eval(), make(stream, decoder=one, **options).eval()):
        with torch.no_grad():
            results.append(head(features(2), metas(batch(stream))))
    assert all(torch.equal(results[0][name], results[1][name]) for name in ('logits', 'codes'))


def test_propagated_queries_and_memory_keys_stand_where_their_velocities_bring_them():
    """x + v dt in the current frame, whatever the ego vehicle did; in the rotations alone."""
    seen = []
    for motion in (False, True):
        head = make(True, motion_in_time=True).eval()
        head.motion_in_time = False
        with torch.no_grad():
            head(features(), metas([stream_sample(frame=0)]))
            head(features(), metas([stream_sample(frame=1)]))
            kept = head.memory._kept  # global
            kept.velocity.copy_(torch.randn(1, 16, 2, generator=torch.Generator().manual_seed(0)) * 5)
            inputs, _ = record(head)
            queries, make_queries = [], head._make_queries
            head.motion_in_time = motion
            head._make_queries = lambda *args: queries.append(make_queries(*args)) or queries[-1]  # noqa: B023
            frame = stream_sample(frame=2)
            head(features(), metas([frame]))
        seen.append((inputs[0], queries[0]))
        pose = torch.from_numpy(frame.ego_pose)
        velocity = (kept.poses[0, :12, :3, :2] @ kept.velocity[0, :12, :, None].double())[..., 0]  # global axes
        age = 1.0 - kept.times[0, :12, None]  # this frame is of t = 1 s
        points = (kept.points[0, :12] + (velocity * age if motion else 0) - pose[:3, 3]) @ pose[:3, :3]
        assert set(age.flatten().tolist()) == {0.5, 1.0} and 1 < (velocity * age).norm(dim=-1).max()
        rotated = head.self_encoding.rotate_queries(points[None].float())
        torch.testing.assert_close(inputs[0].self_key_rotation.cos[:, :, 12:], rotated.cos, atol=2e-3, rtol=0)
        crossed = head.encoding.rotate_queries(points[None, :4].float())
        torch.testing.assert_close(inputs[0].query_rotation.cos[:, :, 12:], crossed.cos, atol=2e-3, rtol=0)
    (off, before), (on, after) = seen
    assert torch.equal(before.reference, after.reference) and torch.equal(before.content, after.content)
    assert torch.equal(before.position, after.position) and before.points is None
    assert torch.equal(off.query_rotation.cos[:, :, :12], on.query_rotation.cos[:, :, :12])
    assert not torch.equal(off.query_rotation.cos[:, :, 12:], on.query_rotation.cos[:, :, 12:])


@kinds
def test_uncertain_queries_are_as_wide_as_their_boxes(stream):
    head = make(stream, uncertain_queries=UNCERTAIN, denoising=None).eval()
    inputs, _ = record(head)
    with torch.no_grad():
        for frame in range(1 + stream):
            results = head(features(2), metas(batch(stream, frame)))
            if stream and not frame:
                head.memory._kept.velocity.fill_(3.0)
    first, second = (layer.query_rotation for layer in inputs[-2:])
    size = first.cos ** 2 + first.sin ** 2
    torch.testing.assert_close(size[:, :, :12], torch.ones_like(size[:, :, :12]))
    assert not stream or (size[:, :, 12:] < 0.9).any()  # drifted since
    codes, points = results['codes'][0], head._to_metres(head.reference_points.weight)
    spreads = torch.stack(box_spreads(codes), dim=-2)[:, :12]
    expected = head.encoding.rotate_queries(points.expand(2, -1, -1), spreads=spreads)
    torch.testing.assert_close(second.cos[:, :, :12], expected.cos)
    assert (second.cos ** 2 + second.sin ** 2)[:, :, :12].amin() < 0.9


def test_spreads_have_the_variance_of_the_box():
    torch.manual_seed(0)
    boxes = torch.tensor([[1.0, 2, 3, 4.6, 1.9, 1.5, 0.7, 0, 0], [0, 0, 0, 0.5, 9, 2, -2.5, 0, 0]])
    spreads = torch.stack(box_spreads(box_code.encode(boxes)), dim=-2)
    for box, axes in zip(boxes, spreads):
        inside = (torch.rand(200000, 3) - 0.5) * box[3:6]
        cos, sin = box[6].cos(), box[6].sin()
        turned = inside @ torch.tensor([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
        torch.testing.assert_close(axes.T @ axes, turned.T @ turned / len(turned), atol=0.05, rtol=0.01)
    assert torch.stack(box_spreads(torch.full((10, ), 1e4))).isfinite().all()


@pytest.mark.parametrize('bands', ['axial', 'mixed'])
def test_a_spread_query_is_the_mean_over_its_gaussian(bands):
    torch.manual_seed(0)
    encoding, points = RoPE3D(2, 32, bands=bands).double(), torch.tensor([[[10.0, -4, 0.5]]]).double()
    spreads = torch.tensor([[[[1.0, 0.6, 0], [-0.3, 0.5, 0.4]]]]).double()
    rotation = encoding.rotate_queries(points, spreads=spreads)
    phase = encoding.bands(points[0] + torch.randn(100000, 2).double() @ spreads[0, 0])
    sampled = torch.polar(torch.ones_like(phase), phase).mean(0)
    assert (torch.complex(rotation.cos, rotation.sin)[0, :, 0] - sampled).abs().max() < 0.015
    diagonal = torch.diag(torch.tensor([0.9, 0.9, 0.5])).double()[None, None]
    box = WorldRoPE(2, 32, bands=bands, query_deviation=[0.9, 0.9, 0.5]).double()
    torch.testing.assert_close(box.rotate_queries(points).cos, encoding.rotate_queries(points, spreads=diagonal).cos)
    far = encoding.rotate_queries(points, spreads=1e4 * spreads)  # an unrotated pair would stay
    assert far.cos.isfinite().all() and far.cos.abs().max() < 1e-6


@pytest.mark.parametrize('options,message', [
    (dict(moving_queries=True, encoding=None, self_encoding=None), 'moving_queries: no encoding'),
    (dict(uncertain_queries=UNCERTAIN, encoding=dict(type='georope.GTA')), 'uncertain_queries: GTA takes no spreads'),
    (dict(uncertain_queries=dict(box=1.0)), 'uncertain_queries must be dict'),
    (dict(STREAM, motion_in_time=True, encoding=None, self_encoding=None), 'motion_in_time: no encoding')])
def test_options_without_effect_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
