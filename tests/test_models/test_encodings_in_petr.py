"""Every encoding of configs/_base_/encodings inside the PETR head, and trained on a small toy set."""
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope
from model_factory import features, metas, sample, tiny_head
from torch import nn

from georope.datasets.converter import create_infos
from georope.registry import DATASETS, MODELS
from georope.rope import NoEncoding, Rotation
from georope.toy import make_toy_nuscenes

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
ENCODINGS = {path.stem: Config.fromfile(path) for path in sorted((CONFIGS / '_base_/encodings').glob('*.py'))}
CROSS = {name: cfg.encoding for name, cfg in ENCODINGS.items() if 'encoding' in cfg}
SELF = {name: cfg.self_encoding for name, cfg in ENCODINGS.items() if 'self_encoding' in cfg}
HEADS = {name: dict(encoding=encoding, position_embedding=False) for name, encoding in CROSS.items()}
HEADS['hybrid'] = dict(HEADS['urope'], position_embedding=True)
HEADS.update({name: dict(HEADS['urope'], self_encoding=encoding) for name, encoding in SELF.items()})


@pytest.mark.parametrize('name', CROSS)
@pytest.mark.parametrize('itself', [None, *SELF])
def test_every_encoding_with_every_code_of_self_attention(name, itself):
    """All parameters get gradients: DDP needs no search for unused ones."""
    head = tiny_head(encoding=CROSS[name], self_encoding=SELF.get(itself), position_embedding=False).train()
    sum(head.loss(features(2), [sample('a', 3), sample('b', 2, seed=1)]).values()).backward()
    assert not [n for n, p in head.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


@pytest.mark.parametrize('itself', SELF)
def test_the_code_of_self_attention_changes_the_answer(itself):
    """Same weights with and without it; no parameter comes with it."""
    plain, coded = tiny_head().eval(), tiny_head(self_encoding=SELF[itself]).eval()
    coded.load_state_dict(plain.state_dict())
    with torch.no_grad():
        one, other = (head(features(1), metas([sample()]))['codes'] for head in (plain, coded))
    assert (one - other).abs().max() > 1e-4


@pytest.mark.parametrize('key,name', [
    ('encoding', 'RoPE3D'), ('encoding', 'BEVTimeRoPE'), ('self_encoding', 'GTA'), ('self_encoding', 'Pluecker'),
    ('self_encoding', 'WorldRoPE'), ('self_encoding', 'URoPE')])
def test_codes_in_the_wrong_attention_are_refused(key, name):
    with pytest.raises(ValueError, match=f'^{key}: {name}'):
        tiny_head(**{key: dict(type=f'georope.{name}')})


def test_depth_loss_sees_the_tokens_that_the_decoder_sees():
    """Tokens that are padding or not chosen count no more than those that are not there."""
    head = tiny_head(encoding=dict(type='georope.WorldRoPE', depth_loss_weight=2.0), denoising=None).train()
    tensor, objects = features(1), sample('a', 40)
    padded = sample('a', 40, img_shape=[(64, 48)] * 2)  # the left half
    left = torch.arange(48).reshape(2, 4, 6)[..., :3].reshape(1, -1)
    whole, part, chosen = (head.loss(tensor, [batch], tokens)['loss_depth'] for batch, tokens in (
        (objects, None), (padded, None), (objects, left.flip(1))))
    torch.testing.assert_close(part, chosen)
    assert (part - whole).abs() > 1e-3


def test_depth_loss_is_of_all_samples_and_trains_the_predictors():
    head = tiny_head(encoding=dict(type='georope.WorldRoPE', depth_loss_weight=2.0), denoising=None).train()
    batch = [sample('a', 40), sample('b', 0, seed=1)]
    losses = head.loss(features(2), batch)
    losses['loss_depth'].backward()
    assert losses['loss_depth'] > 0
    assert all(predictor.weight.grad.abs().sum() > 0 for predictor in head.encoding.predictors)
    assert (head.loss(features(1), batch[1:])['loss_depth'] == 0).all()


class Own(NoEncoding):
    """An encoding of one's own: a learned scale per camera, and a loss on it."""

    def __init__(self, **shape):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.seen = []

    def prepare(self, rays, metas=None):
        self.seen.append([meta['token'] for meta in metas])
        return Rotation((self.scale[rays.cameras][:, None, :, None]).expand(-1, -1, -1, 4), torch.zeros(1).expand(
            len(metas), 1, rays.cameras.shape[1], 4))

    def losses(self, frame, features, points, padding=None):
        return dict(loss_scale=self.scale[:0] if points.isnan().all() else 3 * self.scale)


class OldOwn(NoEncoding):
    """Written before ``prepare`` took metas."""

    def __init__(self, **shape):
        super().__init__()

    def prepare(self, rays):
        return None


def test_the_head_gives_an_encoding_the_metas_and_adds_its_losses():
    MODELS.register_module(module=Own, force=True)
    head = tiny_head(encoding=dict(type='georope.Own'), denoising=None).train()
    losses = head.loss(features(2), [sample('a', 3), sample('b', 2, seed=1)])
    assert head.encoding.seen == [['a', 'b']]
    torch.testing.assert_close(losses['loss_scale'], 3 * head.encoding.scale.mean())
    sum(losses.values()).backward()
    assert (head.encoding.scale.grad != 1.5).all()  # that is the loss alone: the cameras' keys have a say
    assert head.loss(features(1), [sample('c', 0)])['loss_scale'] == 0


def test_an_encoding_written_before_metas_works_on():
    MODELS.register_module(module=OldOwn, force=True)
    tiny_head(encoding=dict(type='georope.OldOwn'), denoising=None).loss(features(1), [sample('a', 3)])


@pytest.fixture(scope='module')
def toy_batches(tmp_path_factory):
    """Two batches of a small toy set through the toy pipeline."""
    root = make_toy_nuscenes(tmp_path_factory.mktemp('toy') / 'set', scenes=(1, 1), samples_per_scene=3,
                             image_size=(112, 200), progress=False)
    create_infos(root, 'v1.0-mini')
    cfg = Config.fromfile(CONFIGS / 'toy/petr_toy.py')
    init_default_scope('mmdet3d')
    dataset = dict(cfg.train_dataloader.dataset, data_root=str(root))
    torch.manual_seed(0)
    dataset = DATASETS.build(dataset)
    return [pseudo_collate([dataset[i]]) for i in range(2)]


@pytest.mark.parametrize('name', HEADS)
def test_two_steps_on_the_toy_world_are_deterministic(name, toy_batches):
    def train(steps=2):
        cfg = Config.fromfile(CONFIGS / 'toy/petr_toy.py').model
        cfg.pts_bbox_head.update(HEADS[name], init_cfg=None)
        torch.manual_seed(3)
        model = MODELS.build(cfg).train()
        model.init_weights()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        values = []
        for batch in toy_batches[:steps]:
            losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            values.append({key: value.item() for key, value in losses.items()})
        return values, [p.detach().clone() for p in model.pts_bbox_head.encoding.parameters()]
    values, parameters = train()
    again, same = train()
    assert values == again and all(map(torch.equal, parameters, same))
    assert not any(map(torch.equal, parameters, train(steps=0)[1]))
    assert all(torch.isfinite(torch.tensor(list(step.values()))).all() for step in values)
