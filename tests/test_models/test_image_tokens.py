"""Image tokens that attend to each other, and tokens of two scales."""
import pytest
import torch
from model_factory import features, metas, sample, stream_sample, tiny_head, tiny_streampetr

WORLD = dict(encoding=dict(type='georope.WorldRoPE', bands='mixed'), position_embedding=False)
POSITIONS = {
    'embedding': dict(), 'predicted': WORLD, 'urope': dict(encoding=dict(type='georope.URoPE')),
    'shared': dict(WORLD, encoding=dict(type='georope.WorldRoPE', per_layer=False)),
    'pluecker': dict(encoding=dict(type='georope.Pluecker'), position_embedding=False),
    'classic': dict(type='georope.PETRClassicHead')}
positions = pytest.mark.parametrize('options', POSITIONS.values(), ids=POSITIONS)
ENCODER = dict(num_layers=2, feedforward_channels=32, dropout=0.0)
MEMORY = dict(type='georope.StreamPETRHead', memory_len=12, topk_proposals=4, num_propagated=4)


def talking(encoder=None, **options):
    """A head, not as training starts: none of its weights are 0."""
    head = tiny_head(token_encoder=ENCODER | (encoder or {}), **options)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in head.token_encoder.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return head


def run(head, maps, data_samples, tokens=None):
    with torch.no_grad():
        return head(maps, metas(data_samples), tokens=tokens)


def test_training_starts_with_tokens_as_they_are():
    """To the norm's epsilon: the residual branches are 0, and contents are normed already."""
    plain, head = tiny_head(**WORLD), tiny_head(token_encoder=ENCODER, **WORLD)
    assert not any(layer.attn.out_proj.weight.any() for layer in head.token_encoder.layers)
    head.load_state_dict(plain.state_dict(), strict=False)
    head.token_encoder.init_weights()
    for layer in head.token_encoder.layers:
        for norm in layer.norms:
            norm.reset_parameters()
    before, after = (run(model.eval(), features(), [sample()]) for model in (plain, head))
    assert all((before[name] - after[name]).abs().max() < 1e-3 for name in before)
    live = run(talking(**WORLD).eval(), features(), [sample()])
    assert (live['logits'] - before['logits']).abs().max() > 0.01


def test_each_predictor_sees_what_the_layer_before_it_made():
    head, seen = talking(**WORLD).eval(), []
    encodings = [layer.encoding for layer in head.token_encoder.layers]
    for encoding in (*encodings, head.encoding):
        rotate = encoding.rotate_keys
        encoding.rotate_keys = lambda frame, content, layer=0, rotate=rotate: seen.append(content) or rotate(
            frame, content, layer)
    outputs = []
    for layer in head.token_encoder.layers:
        layer.register_forward_hook(lambda module, args, output: outputs.append(output))
    run(head, features(), [sample()])
    first, second, *decoder = seen
    assert torch.equal(second, outputs[0]) and len(decoder) == 2
    assert all(torch.equal(content, outputs[1]) for content in decoder)
    assert (first - second).abs().max() > 0.1 and (second - decoder[0]).abs().max() > 0.1


@positions
def test_padding_is_hidden_and_cameras_hear_each_other(options):
    head = talking(**options).eval()
    tensor, frame = features(), [sample(img_shape=[(40, 96), (64, 50)])]
    other = tensor.clone()
    other[:, 0, :, 3:], other[:, 1, ..., 4:] = 50, -50  # rows and columns of padding
    expected = run(head, tensor, frame)
    found = run(head, other, frame)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    contents = []
    head.token_encoder.layers[0].register_forward_hook(lambda module, args, output: contents.append(output))
    other = tensor.clone()
    other[:, 1, :, :2, :2] += 1
    for each in (tensor, other):
        run(head, each, frame)
    assert (contents[0] - contents[1])[0, :18].abs().amin(1).max() > 0  # of camera 0


def test_tokens_may_attend_to_every_third_one():
    head = talking(dict(key_step=3, num_layers=1), **WORLD).eval()
    contents = []
    head.token_encoder.layers[0].register_forward_hook(lambda module, args, output: contents.append(output[0]))
    tensor = features()
    run(head, tensor, [sample()])
    for token, heard in ((6, True), (7, False)):
        other = tensor.clone()
        other.flatten(3)[0, 0, :, token] += 1
        run(head, other, [sample()])
        changed = (contents[-1] - contents[0]).abs().amax(-1) > 1e-6
        assert changed[token] and changed.sum() > 40 if heard else changed.nonzero().flatten().tolist() == [token]


@pytest.mark.parametrize('options', [*POSITIONS.values(), MEMORY | WORLD], ids=[*POSITIONS, 'streampetr'])
def test_checkpoints_change_no_loss_and_no_gradient(options):
    found = []
    for with_cp in (False, True):
        head = talking(dict(with_cp=with_cp, dropout=0.1), **options).train()
        torch.manual_seed(3)
        losses = head.loss(features(2), [stream_sample('a', 0, 3, seed=1), stream_sample('b', 0, 1, seed=2)])
        sum(losses.values()).backward()
        found.append([*losses.values(), *(p.grad for p in head.parameters() if p.requires_grad)])
    assert all(grad is not None and grad.isfinite().all() for grad in found[0])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_depth_loss_teaches_each_layer_on_what_it_saw():
    head = talking(**dict(WORLD, encoding=dict(WORLD['encoding'], depth_loss_weight=0.5))).train()
    frame = [sample(num_boxes=30)]
    losses = head.loss(features(), frame)
    assert {'loss_depth', 'encoder0.loss_depth', 'encoder1.loss_depth'} <= losses.keys()
    losses['encoder1.loss_depth'].backward()
    first, second = (layer.encoding.predictors[0] for layer in head.token_encoder.layers)
    assert second.weight.grad.any() and head.encoding.predictors[0].weight.grad is None
    assert first.weight.grad is None or first.weight.grad.any()  # it turned what the second one saw


def second_scale(batch=1, seed=5):
    return torch.randn(batch, 2, 16, 2, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize('options', [*(dict(POSITIONS[name]) for name in ('embedding', 'predicted', 'pluecker')),
                                     MEMORY | WORLD, dict(compat=True)],
                         ids=['embedding', 'predicted', 'pluecker', 'stream', 'compat'])
def test_either_scale_alone_is_a_head_of_that_scale(options):
    """Two scales of which the tokens of one are chosen: cameras, padding, embeddings and patches are their own."""
    both = tiny_head(stride=[16, 32], **options).eval()
    maps, frame = [features(), second_scale()], [stream_sample(img_shape=[(64, 90), (47, 96)])]
    chosen = torch.arange(48 + 12)[None].split((48, 12), dim=1)
    whole = run(both, maps, frame)
    for stride, features_, tokens in zip((16, 32), maps, chosen):
        one = tiny_head(stride=stride, **options).eval()
        one.load_state_dict(both.state_dict())
        for head in (one, both):
            head.memory.reset() if hasattr(head, 'memory') else None
        if options.get('compat') and stride == 32:
            continue  # its focal lengths repeat per map
        alone, found = run(one, features_, frame), run(both, maps, frame, tokens)
        for name in alone:
            torch.testing.assert_close(found[name], alone[name], atol=1e-5, rtol=1e-5)
        assert (whole['logits'] - alone['logits']).abs().max() > 1e-3


def test_the_2d_head_chooses_of_its_map_and_all_of_the_other_stay():
    model = tiny_streampetr(head=dict(WORLD, stride=[16, 32]), position_level=[0, 1], roi=dict(train_ratio=0.5))
    kept, samples = [], [stream_sample('a', seed=1), stream_sample('b', 0, 0, seed=2)]
    model.pts_bbox_head.register_forward_pre_hook(lambda module, args: kept.append(args[3]))
    torch.manual_seed(0)
    imgs = torch.randn(2, 2, 3, 64, 96)
    losses = model.loss(dict(imgs=imgs), samples)
    assert kept[0].shape == (2, 24 + 12)
    chosen = model.img_roi_head(model.extract_feat(dict(imgs=imgs))[0], metas(samples)).tokens
    assert torch.equal(kept[0][:, :24], chosen) and kept[0][:, 24:].tolist() == [list(range(48, 60))] * 2
    sum(losses.values()).backward()
    assert model.img_neck.lateral_convs[1].conv.weight.grad.abs().sum() > 0


def test_windows_of_two_scales_are_streams():
    """The losses of a window's last frame are those of the frame behind the others."""
    found = []
    for window in (True, False):
        model = tiny_streampetr(head=dict(WORLD, stride=[16, 32], denoising=None), position_level=[0, 1],
                                img_roi_head=None)
        torch.manual_seed(0)
        imgs = torch.randn(1, 2, 2, 3, 64, 96)
        frames = [stream_sample('a', i, seed=i) for i in range(2)]
        if window:
            frames[-1].frames = [frame.clone() for frame in frames]
            losses = model.loss(dict(imgs=imgs), frames[-1:])
            found.append({name.removeprefix('frame_1_'): value for name, value in losses.items()})
        else:
            with torch.no_grad():
                model.loss(dict(imgs=imgs[:, 0]), frames[:1])
            found.append(model.loss(dict(imgs=imgs[:, 1]), frames[1:]))
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('options,message', [
    (dict(encoding=dict(type='georope.GTA', head_dim=8), token_encoder=ENCODER), 'token_encoder: GTA has no rotation'),
    (dict(token_encoder=ENCODER | dict(num_layers=0)), 'token_encoder needs num_layers'),
    (dict(type='georope.PETRClassicHead', stride=[16, 32]), 'PETRClassicHead reads one feature map')])
def test_options_without_effect_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tiny_head(**options)


def test_levels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match='takes 2 feature maps, not 1: position_level'):
        run(tiny_head(stride=[16, 32]), features(), [sample()])
    with pytest.raises(ValueError, match='names 1 levels of img_neck, but pts_bbox_head.stride='):
        tiny_streampetr(head=dict(stride=[16, 32]))
    model = tiny_streampetr(head=dict(stride=[16, 64]), position_level=[0, 1])
    with pytest.raises(ValueError, match=r'stride=64 wants a feature map of \(1, 2\)'):
        model.extract_feat(dict(imgs=torch.zeros(1, 2, 3, 64, 96)))
    model = tiny_streampetr(head=dict(stride=[16, 32]), position_level=[0, 2])
    with pytest.raises(ValueError, match='img_neck has 2 levels; raise its num_outs'):
        model.extract_feat(dict(imgs=torch.zeros(1, 2, 3, 64, 96)))
