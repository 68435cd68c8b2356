import copy

import numpy as np
import pytest
import torch
from model_factory import stream_sample, tiny_streampetr

from georope.registry import MODELS

SIZE = (64, 96)


def images(seed, *shape):
    return torch.from_numpy(np.random.RandomState(seed).randint(0, 255, (*shape, 2, 3, *SIZE), dtype=np.uint8))


def frames(number, *scenes, **options):
    """What the loader gives for frame ``number`` of some scenes."""
    seeds = [10 * number + ord(scene) for scene in scenes]
    return dict(inputs=dict(img=[images(seed) for seed in seeds]),
                data_samples=[stream_sample(scene, number, seed=seed, **options) for scene, seed in zip(scenes, seeds)])


def windows(length, *scenes):
    """What the loader gives for windows: as ``frames``, stacked."""
    batches = [frames(number, *scenes) for number in range(length)]
    samples = []
    for own in zip(*(batch['data_samples'] for batch in batches)):
        samples.append(own[-1].clone())
        samples[-1].frames = list(own)
    stacked = [torch.stack(own) for own in zip(*(batch['inputs']['img'] for batch in batches))]
    return dict(inputs=dict(img=stacked), data_samples=samples)


def call(model, data, mode):
    if model.training != (mode == 'loss'):
        model.train(mode == 'loss')
    return model(**model.data_preprocessor(copy.deepcopy(data), mode == 'loss'), mode=mode)


def tensors(predictions):
    return [torch.cat((p.pred_instances_3d.bboxes_3d.tensor, p.pred_instances_3d.scores_3d[:, None]), dim=1)
            for p in predictions]


def same(actual, expected, atol=1e-3):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize('denoising', [None, dict(groups=2)])
@pytest.mark.parametrize('roi', [dict(), dict(train_ratio=0.5, infer_ratio=0.5)])
def test_streaming_training(roi, denoising):
    """Every parameter that is trained gets a gradient in every step, with DN on and off (no find_unused_parameters)."""
    model = tiny_streampetr(roi=roi, head=dict(denoising=denoising))
    for number in range(3):
        model.zero_grad()
        losses = call(model, frames(number, 'a', 'b'), 'loss')
        assert {'loss_cls', 'loss_bbox', 'enc_loss_cls', 'enc_loss_bbox', 'enc_loss_iou', 'centers2d_losses',
                'centerness_losses'} <= set(losses)
        total, _ = model.parse_losses(losses)
        total.backward()
        assert total.isfinite()
        assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    empty = call(model, frames(3, 'a', 'b', num_boxes=0), 'loss')
    model.zero_grad()
    model.parse_losses(empty)[0].backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert empty['loss_bbox'] == empty['enc_loss_bbox'] == empty['enc_loss_iou'] == 0


def test_tests_depend_on_nothing_before_them():
    """Scene b after scene a or alone, twice, in a batch or not, after training: the same boxes."""
    model = tiny_streampetr()

    def run(*scenes):
        return [tensors(call(model, frames(number, *scenes), 'predict')) for number in range(3)]

    alone = [boxes for boxes, in run('b')]
    assert (alone[1][0] - tensors(call(tiny_streampetr(), frames(1, 'b'), 'predict'))[0][0]).abs().max() > 1e-3
    run('a')
    same([boxes for boxes, in run('b')], alone, 0)
    same([boxes for boxes, in run('b')], alone, 0)
    together = run('a', 'b')
    same([b for _, b in together], alone)
    same([boxes for boxes, in run('a')], [a for a, _ in together])
    fresh = tensors(call(tiny_streampetr(), frames(1, 'b'), 'predict'))
    call(model, frames(0, 'b'), 'loss')
    same(tensors(call(model, frames(1, 'b'), 'predict')), fresh, 0)  # a switch from training
    call(model, frames(0, 'a', 'b'), 'predict')
    same(tensors(call(model, frames(1, 'b'), 'predict')), fresh, 0)  # another batch size


def test_tokens_are_chosen_where_the_ratio_says_so():
    model = tiny_streampetr(roi=dict(train_ratio=0.5, infer_ratio=0.25))
    seen = []
    choose = type(model.pts_bbox_head)._embed_image
    model.pts_bbox_head._embed_image = lambda features, metas, tokens: (
        seen.append(tokens), choose(model.pts_bbox_head, features, metas, tokens))[1]
    call(model, frames(0, 'a'), 'loss')
    call(model, frames(0, 'a'), 'predict')
    call(model, frames(1, 'a'), 'tensor')
    assert [tokens.shape for tokens in seen] == [(1, 24), (1, 12), (1, 12)]
    seen.clear()
    model.num_frame_head_grads = 2
    call(model, windows(3, 'a'), 'loss')
    assert seen[0] is None and [tokens.shape for tokens in seen[1:]] == [(1, 24)] * 2  # the history has no choice
    plain = tiny_streampetr()
    plain.img_roi_head = None
    assert len(call(plain, frames(0, 'a'), 'predict')[0].pred_instances_3d)
    assert 'enc_loss_cls' not in call(plain, frames(0, 'a'), 'loss')


def test_windows():
    """Losses of the last frames; gradients into the last images only; earlier frames act through the memory."""
    model = tiny_streampetr(num_frame_losses=2, num_frame_head_grads=3, num_frame_backbone_grads=3, dropout=0.5)
    data = model.data_preprocessor(windows(5, 'a', 'b'), True)
    assert data['inputs']['imgs'].shape == (2, 5, 2, 3, *SIZE)
    imgs = data['inputs']['imgs'].requires_grad_()
    modes = []
    model.pts_bbox_head.register_forward_pre_hook(
        lambda head, args: modes.append((head.training, head.memory._last and head.memory._last[0])))
    model.train()
    losses = model(**data, mode='loss')
    assert [training for training, _ in modes] == [False, False, True, True, True]
    assert [last for _, last in modes] == [[], ('a', 0.0), ('a', 0.5), ('a', 1.0), ('a', 1.5)]
    assert all(part.training != isinstance(part, torch.nn.BatchNorm2d) for part in model.modules())  # norm_eval
    assert {name.split('_', 2)[1] for name in losses} == {'3', '4'}
    assert {name.split('_', 2)[2] for name in losses} >= {'loss_cls', 'dn_loss_bbox', 'enc_loss_cls'}
    total, logs = model.parse_losses(losses)
    total.backward()
    # Memory carries no gradient: the third last frame, in training mode without a loss, gets none either.
    assert [bool(imgs.grad[:, t].any()) for t in range(5)] == [False, False, False, True, True]
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    call(model, windows(3, 'b'), 'loss')
    assert modes[-3][1] == []  # no window starts with another's memory


def test_the_backbone_learns_from_the_last_images_alone():
    """Earlier frames pass it in evaluation mode, also those with losses."""
    model = tiny_streampetr(num_frame_losses=2, num_frame_head_grads=2)
    modes = []
    model.img_backbone.register_forward_pre_hook(lambda net, args: modes.append((net.training, len(args[0]))))
    data = model.data_preprocessor(windows(4, 'a', 'b'), True)
    imgs = data['inputs']['imgs'].requires_grad_()
    model.parse_losses(model(**data, mode='loss'))[0].backward()
    assert modes == [(False, 12), (True, 4)]  # 2 windows with 2 cameras
    assert [bool(imgs.grad[:, t].any()) for t in range(4)] == [False, False, False, True]


def test_a_window_is_a_stream():
    """With the same modes, a window gives the losses of its frames fed one by one."""
    model = tiny_streampetr(
        head=dict(denoising=None), num_frame_losses=3, num_frame_head_grads=3, num_frame_backbone_grads=3)
    together = call(model, windows(3, 'a', 'b'), 'loss')
    model.pts_bbox_head.memory.reset()
    for number in range(3):
        for name, loss in call(model, frames(number, 'a', 'b'), 'loss').items():
            torch.testing.assert_close(together[f'frame_{number}_{name}'], loss, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('options', [dict(num_frame_losses=2), dict(num_frame_losses=0),
                                     dict(num_frame_backbone_grads=0)])
def test_frames_with_losses_need_gradients(options):
    with pytest.raises(ValueError, match='num_frame_losses'):
        tiny_streampetr(**options)


def test_wrong_windows_are_refused():
    model = tiny_streampetr(num_frame_losses=2, num_frame_head_grads=2)
    with pytest.raises(ValueError, match='num_frame_head_grads=2'):
        call(model, windows(1, 'a'), 'loss')
    data = windows(3, 'a')
    data['data_samples'][0].frames.pop()
    with pytest.raises(ValueError, match='3 frames'):
        call(model, data, 'loss')
    data = windows(3, 'a', 'b')
    data['inputs']['img'][1] = data['inputs']['img'][1][:2]
    with pytest.raises(ValueError, match='same number of frames'):
        call(model, data, 'loss')
    with pytest.raises(ValueError, match='stride'):
        tiny_streampetr(roi=dict(stride=8))


def test_bad_camera_labels_name_the_sample():
    model = tiny_streampetr()
    data = frames(0, 'a', 'b')
    del data['data_samples'][1].gt_cameras
    with pytest.raises(ValueError, match='b-0 has no 2D labels'):
        call(model, data, 'loss')
    data = frames(0, 'a', 'b')
    data['data_samples'][1].gt_cameras[1].labels[0] = 10
    with pytest.raises(ValueError, match='b-0, camera 1'):
        call(model, data, 'loss')


def test_one_bad_pixel_names_the_sample():
    model = tiny_streampetr()
    data = frames(0, 'a', 'b')
    data['inputs']['img'] = [image.float() for image in data['inputs']['img']]
    data['inputs']['img'][1][0, 1, 30, 40] = torch.inf
    with pytest.raises(FloatingPointError, match=r"\['b-0'\]"):
        call(model, data, 'predict')


def test_a_2d_head_that_diverges_names_the_samples():
    """By name, before the solver meets NaN."""
    model = tiny_streampetr()
    model.img_roi_head.center2d.bias.data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match=r"2D .*\['a-0', 'b-0'\]"):
        call(model, frames(0, 'a', 'b'), 'loss')


def test_a_step_under_bfloat16_is_finite():
    """Three frames with autocast, forward and backward."""
    model = tiny_streampetr()
    for number in range(3):
        with torch.autocast('cpu', torch.bfloat16):
            losses = call(model, frames(number, 'a', 'b'), 'loss')
        assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
        model.parse_losses(losses)[0].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_grid_mask_leaves_the_history_alone():
    augment = MODELS.build(dict(type='georope.GridMask', prob=1.0, last_frames=2))
    imgs, _ = augment(torch.ones(2, 4, 2, 3, *SIZE), None)
    assert [bool((imgs[:, t] == 0).any()) for t in range(4)] == [False, False, True, True]
