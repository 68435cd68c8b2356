import io
import math

import numpy as np
import pytest
import torch
from model_factory import POSITION_RANGE, STRIDE, UROPE, features, metas, sample, tiny_head

from georope.models.assignment import Targets
from georope.models.box_code import encode

# The 3D embedding alone, both, the rotary code alone, and one that predicts positions.
POSITIONS = {
    'embedding': dict(),
    'hybrid': dict(encoding=UROPE),
    'replace': dict(encoding=UROPE, position_embedding=False),
    'predicted': dict(encoding=dict(type='georope.WorldRoPE', bands='mixed'), position_embedding=False)
}
positions = pytest.mark.parametrize('options', POSITIONS.values(), ids=POSITIONS)


def close(actual, expected, atol=2e-4):
    for key in expected:
        torch.testing.assert_close(actual[key], expected[key], atol=atol, rtol=0, msg=lambda m, key=key: f'{key}: {m}')


def run(head, tensor, data_samples):
    with torch.no_grad():
        return head(tensor, metas(data_samples))


@positions
def test_batch_is_its_samples(options):
    """Two calibrations in a batch."""
    head = tiny_head(**options).eval()
    tensor, batch = features(2), [sample('a', seed=1), sample('b', seed=2)]
    together = run(head, tensor, batch)
    for i in range(2):
        alone = run(head, tensor[i:i + 1], batch[i:i + 1])
        close({key: value[:, i:i + 1] for key, value in together.items()}, alone)
    assert (together['codes'][:, 0] - run(head, tensor[:1], batch[1:])['codes'][:, 0]).abs().max() > 0.01


@positions
def test_denoising_ignores_the_object_counts_of_others(options):
    """[3, 1] objects give each sample what it gets alone; the losses, which are means over objects, likewise."""
    head = tiny_head(denoising=dict(groups=3, noise_scale=0), **options).train()
    tensor, batch = features(2), [sample('a', 3, seed=1), sample('b', 1, seed=2)]

    def train(tensor, batch):
        truth = [Targets(encode_input(s), s.gt_instances_3d.labels_3d) for s in batch]
        queries = head.denoising(truth, head.pc_range, head.num_query, 10)
        results = head(tensor, metas(batch), queries)
        return queries, results, head.loss_by_feat(results, truth, queries)

    queries, together, losses = train(tensor, batch)
    sums = dict.fromkeys(losses, 0)
    for i, objects in enumerate((3, 1)):
        _, alone, own = train(tensor[i:i + 1], batch[i:i + 1])
        sums = {name: value + objects * own[name] for name, value in sums.items()}
        close({key: together[key][:, queries.sample == i] for key in ('dn_logits', 'dn_codes')},
              {key: alone[key] for key in ('dn_logits', 'dn_codes')})
        close({'codes': together['codes'][:, i:i + 1]}, {'codes': alone['codes']})
    assert 'dn_loss_bbox' in losses
    close({name: 4 * value for name, value in losses.items()}, sums, atol=2e-3)


def encode_input(data_sample):
    boxes = data_sample.gt_instances_3d.bboxes_3d
    return torch.cat((boxes.gravity_center, boxes.tensor[:, 3:]), dim=1)


@positions
@pytest.mark.parametrize('training', [False, True])
def test_padding_changes_nothing(options, training):
    """Padded tokens are not seen, whatever is in them; a batch may hold several sizes."""
    head = tiny_head(**options).train(training)
    tensor, batch = features(1), [sample()]
    larger = torch.full((1, 2, 16, 7, 8), 50.0)
    larger[..., :4, :6] = tensor
    close(run(head, larger, batch), run(head, tensor, batch))
    # 50 x 90 valid pixels of 64 x 96: rows 0..2 (centre 40) and columns 0..5 (centre 88) remain.
    smaller = [sample(img_shape=[(50, 90)] * 2)]
    garbage = tensor.clone()
    garbage[..., 3:, :] = 50
    close(run(head, garbage, smaller), run(head, tensor, smaller))
    assert (run(head, garbage, batch)['codes'] - run(head, tensor, batch)['codes']).abs().max() > 0.01


@positions
def test_flipped_image_with_flipped_calibration(options):
    """Negative focal lengths."""
    head = tiny_head(**options).eval()
    tensor, plain = features(1), sample()
    flip = np.eye(4)
    flip[0, [0, 2]] = (-1, tensor.shape[-1] * STRIDE)
    flipped = sample(lidar2img=flip @ plain.lidar2img, cam2img=flip @ plain.cam2img)
    close(run(head, tensor.flip(-1), [flipped]), run(head, tensor, [plain]))


@positions
@pytest.mark.parametrize('num', [1, 3, 7])
def test_any_cameras_in_any_order(options, num):
    head = tiny_head(**options).eval()
    tensor, plain = features(1, num), sample(num_cameras=num)
    order = np.random.RandomState(0).permutation(num)
    shuffled = sample(num_cameras=num, lidar2img=plain.lidar2img[order], cam2img=plain.cam2img[order])
    close(run(head, tensor[:, order], [shuffled]), run(head, tensor, [plain]))


def test_the_frame_may_be_moved():
    """With the rotary code alone, cameras and range moved together move the boxes and nothing else; with
    the learned embedding they change them."""
    head = tiny_head(**POSITIONS['replace']).eval()
    tensor, plain = features(1), sample()
    expected = run(head, tensor, [plain])
    shift = torch.tensor([10.0, -7.0, 1.5])
    back = np.eye(4)
    back[:3, 3] = -shift.numpy()
    head.pc_range += shift.repeat(2)
    moved = run(head, tensor, [sample(lidar2img=plain.lidar2img @ back)])
    expected['codes'][..., :3] += shift
    close(moved, expected)

    learned = tiny_head().eval()
    before = run(learned, tensor, [plain])
    learned.pc_range += shift.repeat(2)
    after = run(learned, tensor, [sample(lidar2img=plain.lidar2img @ back)])
    assert (after['codes'][..., :3] - shift - before['codes'][..., :3]).abs().max() > 0.01


def test_focal_lengths_of_tokens():
    """Token t belongs to camera t // (H * W); the reference's known bug is t % N."""
    cam2img = np.tile(np.eye(4), (3, 1, 1)) * np.array([1, 2, 3.0])[:, None, None]
    for compat, expected in ((False, [1, 1, 2, 2, 3, 3]), (True, [1, 2, 3, 1, 2, 3])):
        focal = tiny_head(compat=compat)._focal_lengths([dict(cam2img=cam2img)], 3, 2, torch.device('cpu'))
        assert focal[0, :, 0].tolist() == expected


@positions
def test_chosen_tokens_are_all_that_is_seen(options):
    """Chosen tokens, in any order, give what the others masked as padding give; all of them give what None gives."""
    head = tiny_head(**options).eval()
    tensor, data_sample = features(1), sample()
    with torch.no_grad():
        close(head(tensor, metas([data_sample]), tokens=torch.randperm(48)[None]), run(head, tensor, [data_sample]))
        left = sample(img_shape=[(64, 48)] * 2)
        chosen = torch.arange(48).reshape(2, 4, 6)[..., :3].flip(0).reshape(1, -1)
        close(head(tensor, metas([data_sample]), tokens=chosen), run(head, tensor, [left]))


def test_replace_keeps_the_world_out_of_the_content():
    """Without the 3D embedding nothing is built for it, and cameras act through the rotary code only."""
    head = tiny_head(**POSITIONS['replace'])
    assert not [name for name, _ in head.named_parameters()
                if name.split('.')[0] in ('position_encoder', 'featurized_pe', 'spatial_alignment')]
    no_cam2img = sample()
    del no_cam2img.cam2img
    run(head.eval(), features(1), [no_cam2img])


@pytest.mark.parametrize('counts', [(3, 0), (0, 0), (2, ), (30, 1)])
@pytest.mark.parametrize('checkpointing', [False, True])
@pytest.mark.parametrize('denoising', [None, dict(groups=3)])
@positions
def test_losses_and_gradients(options, denoising, checkpointing, counts):
    """Empty frames, more objects than queries; finite, and no parameter without gradient."""
    head = tiny_head(denoising=denoising, **options).train()
    head.transformer['decoder'].with_cp = checkpointing
    losses = head.loss(features(len(counts)), [sample(f's{i}', count, seed=i) for i, count in enumerate(counts)])
    assert ('dn_loss_cls' in losses) == (denoising is not None)
    assert set(losses) >= {'loss_cls', 'loss_bbox', 'd0.loss_cls', 'd0.loss_bbox'}
    assert all(loss.isfinite() and loss.dim() == 0 for loss in losses.values())
    assert (losses['loss_bbox'] > 0) == (sum(counts) > 0) and losses['loss_cls'] > 0
    sum(losses.values()).backward()
    assert not [name for name, p in head.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


def test_checkpointing_gives_the_same_gradients():
    def gradients(checkpointing):
        head = tiny_head(**POSITIONS['hybrid']).train()
        head.transformer['decoder'].with_cp = checkpointing
        torch.manual_seed(1)
        sum(head.loss(features(1), [sample()]).values()).backward()
        return {name: p.grad for name, p in head.named_parameters()}

    close(gradients(True), gradients(False), 1e-5)


def test_denoising_loss_weight():
    def losses(weight):
        head = tiny_head(denoising=dict(groups=2, loss_weight=weight)).train()
        torch.manual_seed(1)
        return head.loss(features(1), [sample()])

    once, thrice = losses(1.0), losses(3.0)
    for name, loss in once.items():
        torch.testing.assert_close(thrice[name], loss * (3 if 'dn_' in name else 1))


def test_unknown_velocity_is_no_target():
    """The gradient on both velocity channels is exactly 0, the rest of the object still counts."""
    head = tiny_head()
    results = dict(logits=torch.zeros(1, 1, 12, 10), codes=torch.randn(1, 1, 12, 10).requires_grad_())
    boxes = encode_input(sample(num_boxes=2))

    def gradient(boxes):
        losses = head.loss_by_feat(results, [Targets(boxes, torch.arange(2))])
        return torch.autograd.grad(losses['loss_bbox'], results['codes'])[0][0, 0]

    known = gradient(boxes)
    boxes[1, 7:] = math.nan
    unknown = gradient(boxes)
    assert (known[:, 8:] != 0).any(1).sum() == 2 and (unknown[:, 8:] != 0).any(1).sum() == 1
    assert torch.equal(known[:, :8], unknown[:, :8])
    assert unknown.isfinite().all()


def test_unknown_velocity_in_training():
    head = tiny_head().train()
    data_sample = sample(num_boxes=2)
    data_sample.gt_instances_3d.bboxes_3d.tensor[:, 7:] = math.nan
    losses = head.loss(features(1), [data_sample])
    sum(losses.values()).backward()
    last = head.reg_branches[0][-1]
    assert losses['dn_loss_bbox'].isfinite() and losses['loss_bbox'] > 0
    assert not last.weight.grad[8:].any() and not last.bias.grad[8:].any()
    assert last.weight.grad[:8].any(1).all()


@pytest.mark.parametrize('value', [math.inf, math.nan])
@pytest.mark.parametrize('call', ['loss', 'predict'])
def test_values_that_are_not_finite_name_the_sample(call, value):
    head = tiny_head().train(call == 'loss')
    tensor = features(2)
    tensor[1, 0, 3, 2, 2] = value
    with pytest.raises(FloatingPointError, match=r"\['bad-token'\]"):
        getattr(head, call)(tensor, [sample('fine'), sample('bad-token')])


def test_a_loss_that_is_not_finite_names_the_samples():
    head = tiny_head(denoising=None).train()
    head.loss_bbox.loss_weight = math.nan
    with pytest.raises(FloatingPointError, match=r"\['a', 'b'\].*'d0.loss_bbox': nan"):
        head.loss(features(2), [sample('a'), sample('b')])


@positions
def test_autocast_leaves_geometry_alone(options):
    """Under bfloat16 the outputs stay finite and float32, geometry and phases bit-equal."""
    head = tiny_head(**options).train()
    seen = []
    if head.position_embedding:
        head.position_encoder.register_forward_pre_hook(lambda module, args: seen[-1].append(args[0]))
        head.spatial_alignment.register_forward_pre_hook(lambda module, args: seen[-1].append(args[1]))
    rotate = head.encoding.rotate_keys

    def watched(*args, **kwargs):
        keys = rotate(*args, **kwargs)
        seen[-1].extend(() if keys is None else (keys.cos, keys.sin))
        return keys
    head.encoding.rotate_keys = watched
    dtypes = []
    head.reg_branches[0].register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    results = []
    for enabled in (False, True):
        seen.append([])
        torch.manual_seed(0)
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            losses = head.loss(features(1), [sample()])
        results.append(losses)
        sum(losses.values()).backward()
    assert dtypes == [torch.float32] * 2  # centres in bfloat16 would be half a metre coarse
    assert seen[0] and all(torch.equal(*pair) and pair[0].dtype == torch.float32 for pair in zip(*seen))
    for name, loss in results[1].items():
        assert loss.dtype == torch.float32 and loss.item() == pytest.approx(results[0][name].item(), rel=0.2)
    assert any((results[0][name] != results[1][name]) for name in results[0])  # autocast did something
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_predict():
    head = tiny_head().eval()
    prediction, _ = head.predict(features(2), [sample('a'), sample('b', 0)])
    boxes, scores, labels = prediction.bboxes_3d, prediction.scores_3d, prediction.labels_3d
    assert len(boxes) == len(scores) == len(labels) == len(prediction) > 0 and boxes.tensor.shape[1] == 9
    assert (scores.diff() <= 0).all() and (labels < 10).all()
    lower, upper = torch.tensor(POSITION_RANGE).chunk(2)
    assert ((boxes.gravity_center >= lower) & (boxes.gravity_center <= upper)).all()


def test_init_weights():
    head = tiny_head(num_query=500)
    assert 0 <= head.reference_points.weight.min() < 0.02 and 0.98 < head.reference_points.weight.max() <= 1
    head.init_weights()
    assert head.cls_branches[0][-1].bias.sigmoid().tolist() == pytest.approx([0.01] * 10)
    assert head.cls_branches[0] is head.cls_branches[1]
    assert not head.transformer['decoder'].layers[0].attentions[1].attn.out_proj.bias.any()


def test_checkpoint_round_trip():
    """Weights alone load safely, and bring everything the head needs."""
    head = tiny_head(**POSITIONS['hybrid']).eval()
    buffer = io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    other = tiny_head(seed=1, **POSITIONS['hybrid']).eval()
    before = run(other, features(1), [sample()])
    other.load_state_dict(torch.load(buffer, weights_only=True))
    expected = run(head, features(1), [sample()])
    close(run(other, features(1), [sample()]), expected, 0)
    assert (before['codes'] - expected['codes']).abs().max() > 0.1


def test_code_weights_length():
    with pytest.raises(ValueError, match='code_weights'):
        tiny_head(code_weights=[1.0] * 8)


def test_code_round_trip_of_targets():
    boxes = encode_input(sample(num_boxes=4))
    assert torch.equal(Targets(boxes, torch.arange(4)).codes, encode(boxes))
