"""FocalHead: what the golden numbers, of one unpadded sample, do not say."""
import pytest
import torch
from model_factory import FOCAL, features, metas, stream_sample

from georope.registry import MODELS


@pytest.fixture
def head():
    torch.manual_seed(0)
    head = MODELS.build(FOCAL | dict(in_channels=32, embed_dims=32, train_ratio=0.5))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return head


def test_each_sample_chooses_its_own_tokens(head):
    """The best ones of all its cameras together, whatever the others of the batch are."""
    samples, tensor = [stream_sample(scene) for scene in 'ab'], features(2, channels=32)
    predictions = head(tensor, metas(samples))
    score = (predictions.logits.sigmoid().amax(-1) * predictions.centerness.sigmoid()).reshape(2, 48)
    assert torch.equal(predictions.tokens, score.argsort(dim=1, descending=True)[:, :24])
    for i in range(2):
        alone = head(tensor[i:i + 1], metas(samples[i:i + 1]))
        assert set(alone.tokens[0].tolist()) == set(predictions.tokens[i].tolist())


def test_padding_is_chosen_last(head):
    """One sample of two is 64 x 48 in 64 x 96 pixels: the right halves of its two maps are padding."""
    samples = [stream_sample('a', img_shape=[(64, 48)] * 2), stream_sample('b')]
    tokens = head(features(2, channels=32), metas(samples)).tokens
    assert (tokens % 6 < 3).all(1).tolist() == [True, False]
    head.train_ratio = 0.75
    tokens = head(features(2, channels=32), metas(samples)).tokens
    assert (tokens[0, :24] % 6 < 3).all() and (tokens[0, 24:] % 6 >= 3).all()


def test_averages_are_over_the_whole_batch(head):
    """Sums over two samples, one with many objects and one with none, divided by the number of objects."""
    samples = [stream_sample('a', num_boxes=5), stream_sample('b', num_boxes=0)]
    tensor = features(2, channels=32)
    together = head.loss(head(tensor, metas(samples)), samples)
    full, empty = (head.loss(head(tensor[i:i + 1], metas(samples[i:i + 1])), samples[i:i + 1]) for i in range(2))
    for name, loss in together.items():
        assert loss.item() == pytest.approx((full[name] + empty[name] / 5).item(), rel=1e-4), name
        assert (empty[name] == 0) == (name not in ('enc_loss_cls', 'centerness_losses'))
