"""The worked example of the method's README runs as it stands there."""
import textwrap
from pathlib import Path

import torch
from cameras import camera
from ground_rope import GroundRoPE
from mmengine.config import Config
from mmengine.registry import init_default_scope

import georope.rope
from georope.registry import MODELS
from georope.rope import Rays

README = (Path(georope.rope.__file__).parent / 'README.md').read_text()
EXAMPLE = Path(__file__).with_name('ground_rope.py')


def test_the_readme_shows_the_example():
    code = EXAMPLE.read_text().split('\n', 1)[1].strip()
    assert code in README
    assert len(code.splitlines()) < 40


def test_the_config_of_the_readme_builds_a_model(tmp_path):
    lines = textwrap.dedent(README.split('A config names it:')[1]).replace('my_module', 'ground_rope')
    base = Path(__file__).parents[2] / 'configs/toy/petr_toy.py'
    (tmp_path / 'config.py').write_text(f'_base_ = {str(base)!r}\n{lines}')
    init_default_scope('mmdet3d')
    head = MODELS.build(Config.fromfile(tmp_path / 'config.py').model).pts_bbox_head
    assert type(head.encoding) is GroundRoPE and head.encoding.codes_tokens and not head.position_embedding


def test_a_token_on_the_ground_turns_like_the_point_it_sees():
    encoding = MODELS.build(dict(type='georope.GroundRoPE', bands='mixed', num_heads=2, head_dim=16)).double()
    assert type(encoding) is GroundRoPE
    rays = Rays.from_lidar2img(camera(yaw=0.7, position=(1.0, 0.5, 0.0))[None, None], (16, 44), 16)
    keys = encoding.rotate_keys(encoding.prepare(rays), None)
    row = 13  # below the horizon, which is in the middle
    token = row * 44 + 20
    depth = (-1.8 - rays.origins[0, token, 2]) / rays.directions[0, token, 2]
    point = rays.points([depth])[:, token]
    torch.testing.assert_close(point[0, 0, 2].item(), -1.8)
    torch.testing.assert_close(keys.cos[:, :, token], encoding.rotate_queries(point).cos[:, :, 0])
    sky = rays.points([60.0])[:, 20]
    torch.testing.assert_close(keys.sin[:, :, 20], encoding.rotate_queries(sky).sin[:, :, 0])
