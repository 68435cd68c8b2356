"""Pictures of encodings: the numbers behind them, and tools/visualize_geometry.py in this process."""
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from made_up_rig import HEIGHT, WIDTH, camera
from matplotlib.axes import Axes
from mmengine.config import Config
from mmengine.registry import init_default_scope

from georope.datasets.converter import create_infos
from georope.registry import DATASETS, MODELS
from georope.rope import GTA, LearnedDepth, NoEncoding, RayRoPE, Rays, RotaryAttention, URoPE, WorldRoPE
from georope.toy import make_toy_nuscenes
from georope.visualization import draw_bev, draw_camera
from georope.visualization.geometry import draw_attention, draw_response, draw_support, response, support, token_strokes
from georope.visualization.probe import Probe, annotated_boxes, attention_weights, find_sample, probe

ROOT = Path(__file__).resolve().parents[2]
HEADS, DIMS, STRIDE = 4, 16, 20
SHAPE = dict(num_heads=HEADS, head_dim=DIMS)
PREDICTED = dict(SHAPE, reference_focal=200)  # the cameras' own: depths that are predicted start at the anchors
ANCHORS = [5, 12, 25, 45]
COLOUR = (0, 255, 255)


@pytest.fixture
def seen() -> Probe:
    """Two cameras, the second turned so far that it still sees the first one's left edge."""
    matrices = np.stack([camera(0), camera(1.)])
    grid = (2, HEIGHT // STRIDE, WIDTH // STRIDE)
    rays = Rays.from_lidar2img(torch.from_numpy(matrices)[None], grid[1:], STRIDE).to(torch.float32)
    return Probe('a', [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 2, matrices, ['CAM_0', 'CAM_1'], grid, STRIDE, rays,
                 HEADS, HEADS * DIMS, torch.zeros(3, 3))


def test_a_token_is_found_by_camera_and_pixel(seen):
    for name, u, v in (('CAM_0', 0, 0), ('CAM_1', 319.9, 179.9), ('CAM_1', 101, 77)):
        token = seen.find_token(name, u, v)
        assert token // (seen.grid[1] * seen.grid[2]) == seen.cam_names.index(name)
        assert (seen.rays.pixels[0, token] - torch.tensor([u, v])).abs().max() <= STRIDE / 2
    with pytest.raises(ValueError, match=r"sample a: no camera 'CAM_2', it has \['CAM_0', 'CAM_1'\]"):
        seen.find_token('CAM_2', 0, 0)
    for pixel in ((320, 0), (0, 180), (-1, 5), (float('nan'), 0)):
        with pytest.raises(ValueError, match='sample a, CAM_1: pixel .* 320 wide and 180 high'):
            seen.find_token('CAM_1', *pixel)


def test_supports(seen):
    content = torch.randn(HEADS * DIMS)
    at = seen.rays, seen.find_token('CAM_0', 4, 95), content
    fixed = support(URoPE(**SHAPE, anchors=[45, 5]), *at)
    assert fixed.depths.tolist() == [5, 45] and fixed.weights.tolist() == [.5, .5] and not fixed.spreads.any()
    encoding = WorldRoPE(**PREDICTED, anchors=ANCHORS, num_layers=2)
    with torch.no_grad():
        encoding.predictors[1].bias[:4] = np.log(1.5)
    first, second = (support(encoding, *at, layer) for layer in (0, 1))
    np.testing.assert_allclose(first.depths, ANCHORS, rtol=1e-5)
    np.testing.assert_allclose(second.depths, 1.5 * np.array(ANCHORS), rtol=1e-5)
    np.testing.assert_allclose(first.spreads, .35 * first.depths, rtol=1e-5)
    np.testing.assert_allclose(first.weights, .25)
    interval, depth = support(RayRoPE(**PREDICTED, anchors=[20]), *at), support(LearnedDepth(**PREDICTED), *at)
    nearer = support(RayRoPE(**SHAPE, anchors=[20], reference_focal=400), *at)  # metres through a lens twice as long
    assert nearer.depths == pytest.approx([10]) and nearer.spreads == pytest.approx([3.5])
    assert interval.uniform and interval.spreads == pytest.approx([7]) and depth.spreads.tolist() == [0]
    assert support(GTA(**SHAPE), *at) is support(NoEncoding(**SHAPE), *at) is None


def lit(image, point) -> bool:
    u, v = np.round(point).astype(int)
    return bool((np.abs(image[v - 1:v + 2, u - 1:u + 2].astype(int) - COLOUR).max(-1) < 30).any())


def test_anchors_lie_where_they_project(seen):
    """In its own camera a token's anchors all lie at its pixel; in the other one, and from above, each at its own."""
    token = seen.find_token('CAM_0', 4, 95)
    where = support(URoPE(**SHAPE, anchors=ANCHORS), seen.rays, token, torch.zeros(HEADS * DIMS))
    dots = [stroke for stroke in token_strokes(seen.rays, token, where, COLOUR, 'A', 50) if len(stroke.points) == 1]
    assert [dot.label for dot in dots] == ['5.0 m', '12.0 m', '25.0 m', '45.0 m']
    above = draw_bev(600, bev_range=60, strokes=dots)
    for dot, point in zip(dots, seen.rays.points(ANCHORS)[0, token].double().numpy()):
        for index in (0, 1):
            ends = seen.lidar2img[index] @ [*point, 1]
            assert lit(draw_camera(seen.images[index], seen.lidar2img[index], strokes=[dot]), ends[:2] / ends[2])
            if index == 0:
                np.testing.assert_allclose(ends[:2] / ends[2], seen.rays.pixels[0, token], atol=1e-3)
        assert lit(above, point[:2] * (5, -5) + 300)


def test_an_encoding_of_ones_own_is_drawn_at_its_true_position(seen, monkeypatch):
    """The example's tokens end at the ground, here 7 m ahead: pictures show that depth, not the anchors behind it."""
    monkeypatch.syspath_prepend(ROOT / 'examples/my_project')
    from my_project import GroundURoPE
    token = seen.find_token('CAM_0', 100, 150)
    encoding = GroundURoPE(**SHAPE, anchors=ANCHORS, ground=seen.rays.points([7.])[0, token, 0, 2].item())
    dots = [stroke for stroke in token_strokes(seen.rays, token, support(
        encoding, seen.rays, token, torch.zeros(HEADS * DIMS)), COLOUR, 'A', 50) if len(stroke.points) == 1]
    assert [dot.label for dot in dots] == ['5.0 m', '7.0 m']
    scattered, scatter = [], Axes.scatter
    monkeypatch.setattr(Axes, 'scatter', lambda self, x, y, **kwargs: scattered.append((x, y)) or scatter(
        self, x, y, **kwargs))
    draw_response(seen, {'ground': encoding}, token, size=9)
    np.testing.assert_allclose(np.transpose(scattered[0]), seen.rays.points([5., 7.])[0, token, :, :2], rtol=1e-5)
    picture = draw_support(seen, encoding, {'A': token})
    assert (picture != draw_support(seen, URoPE(**SHAPE, anchors=ANCHORS), {'A': token})).any()


def test_ellipse_is_one_standard_deviation(seen):
    token = seen.find_token('CAM_0', 4, 95)
    where = support(WorldRoPE(**PREDICTED, anchors=[20]), seen.rays, token, torch.zeros(HEADS * DIMS))
    origin, direction = seen.rays.origins[0, token].numpy(), seen.rays.directions[0, token].numpy()
    ring, = (s.points for s in token_strokes(seen.rays, token, where, COLOUR, 'A', 50) if len(s.points) > 5)
    ahead = np.array([0, 1, 0])  # the camera's optical axis: depths
    assert sorted({round(float(x), 3) for x in ((ring - origin) @ ahead)[[0, 16]]}) == [13, 27]
    across = np.linalg.norm(ring[8] - origin - 20 * direction)  # at the mean depth
    assert across == pytest.approx((STRIDE ** 2 / 12 * (20 ** 2 + 7 ** 2)) ** .5 / 200, rel=1e-3)  # focal length 200


def test_response_is_one_at_the_place_and_flat_without_a_code_of_queries(seen):
    token = seen.find_token('CAM_0', 100, 95)
    content = torch.zeros(HEADS * DIMS)
    positions = seen.rays.points(ANCHORS)[0, token]
    at_anchors = response(URoPE(**SHAPE, anchors=ANCHORS), seen.rays, token, content, positions, HEADS)
    torch.testing.assert_close(at_anchors.diagonal(), torch.ones(HEADS))  # head h has anchor h
    assert (at_anchors - torch.eye(HEADS)).max() < .999
    elsewhere = torch.rand(50, 3) * 60 - 30
    uncertain = response(WorldRoPE(**PREDICTED, anchors=ANCHORS), seen.rays, token, content, elsewhere, HEADS)
    assert uncertain.shape == (HEADS, 50) and uncertain.abs().max() <= 1 and uncertain.std() > .05
    for encoding in (GTA(**SHAPE), NoEncoding(**SHAPE)):
        assert response(encoding, seen.rays, token, content, elsewhere, HEADS).std(1).max() < 1e-6


def test_response_is_drawn_where_it_is(seen, monkeypatch):
    """The brightest point of the picture is where the token is, right of the vehicle as ahead of it."""
    drawn = []
    show = Axes.imshow
    monkeypatch.setattr(Axes, 'imshow', lambda self, *args, **kwargs: drawn.append((args[0], kwargs)) or show(
        self, *args, **kwargs))
    token = seen.find_token('CAM_1', 100, 95)
    x, y, z = seen.rays.points([20.0])[0, token, 0].tolist()
    draw_response(seen, {'urope': URoPE(**SHAPE, anchors=[20], bands='mixed')}, token, 40, z, size=321)
    assert len(drawn) == 2 and abs(abs(x) - abs(y)) > 3
    for values, options in drawn:
        assert options['origin'] == 'lower' and options['extent'] == (-40, 40, -40, 40)
        row, column = np.unravel_index(values.argmax(), values.shape)
        assert (-40 + column / 4, -40 + row / 4) == pytest.approx((x, y), abs=0.26)


def test_weights_are_those_of_the_attention(seen):
    """Applied by hand, they give what the module gives."""
    torch.manual_seed(0)
    attention, encoding = RotaryAttention(HEADS * DIMS, HEADS), WorldRoPE(**PREDICTED)
    length = seen.rays.directions.shape[1]
    query, key, value = torch.randn(1, 5, HEADS * DIMS), *torch.randn(2, 1, length, HEADS * DIMS)
    queries = encoding.rotate_queries(torch.rand(1, 5, 3) * 20)
    keys = encoding.rotate_keys(encoding.prepare(seen.rays), value)
    padding = torch.arange(length)[None] % 3 == 0
    weights = attention_weights(attention, query, key, value, queries, keys, padding)
    projected = value @ attention.in_proj_weight.chunk(3)[2].T + attention.in_proj_bias.chunk(3)[2]
    out = torch.einsum('bhql,blhc->bqhc', weights, keys.apply(projected.unflatten(-1, (HEADS, DIMS))))
    torch.testing.assert_close(attention.out_proj(queries.undo(out).flatten(-2)),
                               attention(query, key, value, queries, keys, key_padding_mask=padding))
    assert weights[..., padding[0]].max() == 0


def test_tokens_that_a_2d_head_left_out(seen):
    total = int(np.prod(seen.grid))
    chosen = torch.tensor([3, total - 1])
    seen = replace(seen, chosen=chosen, content=torch.arange(4.).view(1, 2, 2), attention=torch.tensor([[[.25, .75]]]))
    maps = seen.attention_maps(0)
    assert maps.shape == (1, *seen.grid) and maps[0, 0, 0, 3] == .25 and maps[0, -1, -1, -1] == .75 and maps.sum() == 1
    assert seen.token_content(total - 1, 0).tolist() == [2, 3]
    with pytest.raises(ValueError, match='sample a: the 2D head left out image token 4'):
        seen.token_content(4, 0)


@pytest.fixture(scope='module')
def toy(tmp_path_factory) -> Path:
    root = make_toy_nuscenes(tmp_path_factory.mktemp('toy') / 'set', scenes=(0, 1), samples_per_scene=2, num_cameras=3,
                             image_size=(112, 200), progress=False)
    create_infos(str(root), 'v1.0-mini')
    return root


def tiny(name: str, root: Path) -> Config:
    """A toy model, smaller still."""
    cfg = Config.fromfile(ROOT / 'configs/toy' / name)
    cfg.merge_from_dict({'test_dataloader.dataset.data_root': f'{root}/', 'model.pts_bbox_head.decoder.num_layers': 2,
                         'model.img_backbone.base_channels': 4, 'model.img_neck.in_channels': [16, 32]})
    init_default_scope('mmdet3d')
    return cfg


def test_stream_model_whose_2d_head_chooses(toy):
    """Watching changes nothing; the maps sum to 1 over the chosen tokens."""
    cfg = tiny('streampetr-urope_toy.py', toy)
    cfg.model.img_roi_head.infer_ratio = 0.5
    torch.manual_seed(0)
    model, dataset = MODELS.build(cfg.model), DATASETS.build(cfg.test_dataloader.dataset)
    model.eval()
    seen = probe(model, dataset[1])
    maps = seen.attention_maps(len(seen.reference) - 1)
    np.testing.assert_allclose(maps.sum((1, 2, 3)), 1, rtol=1e-5)
    assert (maps > 0).sum() == 2 * len(seen.chosen) == 2 * (np.prod(seen.grid) // 2)
    with pytest.raises(ValueError, match='query 150: the model has queries 0 to 149'):
        draw_attention(seen, 150, 0, dataset.metainfo['classes'])
    with pytest.raises(ValueError, match='head 8: the decoder has heads 0 to 7'):
        draw_response(seen, {}, 0, head=8)
    model.pts_bbox_head.memory.reset()
    with torch.no_grad():
        batch = model.data_preprocessor(dict(inputs=dict(img=[dataset[1]['inputs']['img']]),
                                             data_samples=[dataset[1]['data_samples']]))
        torch.testing.assert_close(model(**batch, mode='tensor')['codes'], seen.results['codes'], rtol=0, atol=0)


def test_samples_are_found_by_token_or_place(toy):
    dataset = DATASETS.build(tiny('petr_toy.py', toy).test_dataloader.dataset)
    token = dataset.get_data_info(1)['token']
    assert find_sample(dataset, token) == find_sample(dataset, '1') == 1
    assert len(annotated_boxes(dataset.ann_file, token)) > 0
    with pytest.raises(ValueError, match="nuscenes_infos_val.pkl has no sample 'x'"):
        find_sample(dataset, 'x')
    with pytest.raises(ValueError, match='has samples 0 to 1, no 2'):
        find_sample(dataset, '2')


def test_tool_draws_a_trained_worldrope(toy, tmp_path, monkeypatch, capsys):
    cfg = tiny('petr-worldrope-mixed_toy.py', toy)
    cfg.dump(tmp_path / 'config.py')
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'epoch_1.pth')

    def draw(*options: str) -> None:
        monkeypatch.setattr(sys, 'argv', ['visualize_geometry.py', str(tmp_path / 'config.py'), '--out',
                                          str(tmp_path / 'out'), '--encodings', 'urope', 'none', *options])
        runpy.run_path(str(ROOT / 'tools/visualize_geometry.py'), run_name='__main__')

    token = ('--token', 'CAM_FRONT', '60', '50')
    trained = ('--checkpoint', str(tmp_path / 'epoch_1.pth'), *token)
    draw(*trained)
    names = ['attention_layer0', 'attention_layer1', 'depths', 'response_A', 'support_layer0', 'support_layer1']
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [f'{name}.png' for name in names]
    pictures = [cv2.imread(str(tmp_path / 'out' / f'{name}.png')) for name in names]
    assert all(picture.std() > 10 for picture in pictures)
    printed = capsys.readouterr().out
    assert all(str(tmp_path / 'out' / f'{name}.png') in printed for name in names)

    draw(*token, '--out', str(tmp_path / 'start'))  # without weights: as it starts
    assert sorted(path.name for path in (tmp_path / 'start').iterdir()) == ['response_A.png', 'support.png']

    for options, message in (((*token, '--encodings', 'uropee'), 'uropee: neither a file nor one of'),
                             ((*token, '--encodings', 'self_rope3d'), 'self_rope3d.py has no encoding'),
                             (('--token', 'CAM_FRONT', '60', 'x'), "--token: 'x' is not a pixel")):
        with pytest.raises(SystemExit, match=message):
            draw(*options)


def test_tool_takes_the_encoding_that_a_model_ends_up_with():
    """An ablation changes the one that its base brings along."""
    tool = runpy.run_path(str(ROOT / 'tools/visualize_geometry.py'))
    shape = SimpleNamespace(num_heads=8, channels=256)
    path = ROOT / 'configs/ablations/petr-urope-anchors2_r50_8xb2-24e_nus-3d.py'
    assert tool['build_encoding'](str(path), shape).depths.unique().tolist() == [10, 35]
    assert tool['build_encoding']('urope', shape).depths.unique().tolist() == ANCHORS
