"""Checkpoints: what mmengine and we save can be read, nothing that could run code is, and the rest says why not."""
import os
import pickle
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import log, main
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import CheckpointLoader
from tiny_model import CONFIG, STOCK_CONFIG

from georope.engine import install_loaders, last_checkpoint
from georope.engine.same_encodings import other_encodings
from georope.rope import URoPE

install_loaders()  # as the tools do


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'tiny.py'
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> Path:
    """Two epochs of the tiny model; the folder holds tiny.py, stock.py and the work dirs of both."""
    folder = tmp_path_factory.mktemp('trained')
    for name, text in ('tiny', CONFIG), ('stock', STOCK_CONFIG):
        (folder / f'{name}.py').write_text(text)
        main('train', folder / f'{name}.py', '--work-dir', folder / name, '--cfg-options', 'train_cfg.max_epochs=2',
             'param_scheduler.1.end=4')  # the schedule of four epochs
    return folder


def load(path):
    return CheckpointLoader.load_checkpoint(str(path), map_location='cpu')


def test_our_checkpoints_are_plain_data(trained):
    """Any torch and any tool reads them, without an allow-list."""
    checkpoint = torch.load(trained / 'tiny/epoch_2.pth', weights_only=True)
    assert checkpoint['meta']['epoch'] == 2 and checkpoint['optimizer']['state'] and checkpoint['param_schedulers']
    assert checkpoint['message_hub']['runtime_info']['iter'] == 11


def test_checkpoints_of_mmengine_load_with_their_history(trained):
    with pytest.raises(UnpicklingError):
        torch.load(trained / 'stock/epoch_2.pth', weights_only=True)  # or this test shows nothing
    history = load(trained / 'stock/epoch_2.pth')['message_hub']['log_scalars']['train/loss']
    assert isinstance(history, HistoryBuffer) and len(history.data[0]) == 12 and history.statistics('mean') > 0


@pytest.mark.parametrize('name', ['tiny', 'stock'])
@pytest.mark.parametrize('tool', ['test', 'resume'])
def test_both_are_tested_and_resumed(trained, tmp_path, name, tool):
    checkpoint = trained / name / 'epoch_2.pth'
    if tool == 'test':
        main('test', trained / f'{name}.py', checkpoint, '--work-dir', tmp_path)
        assert 'tiny/count: 12' in log(tmp_path)
    else:
        main('train', trained / f'{name}.py', '--work-dir', tmp_path, '--resume', checkpoint)
        assert 'resumed epoch: 2, iter: 12' in log(tmp_path) and (tmp_path / 'epoch_4.pth').is_file()


class Attack:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(marker: Path) -> dict:
    order = f'touch {marker}'
    array = np.empty(1, dtype=object)
    array[0] = Attack(os.system, order)
    history = HistoryBuffer([1.0], [1])
    history.extra = Attack(os.system, order)
    return {
        'os.system': Attack(os.system, order),
        'eval': Attack(eval, f'__import__("os").system("{order}")'),
        'getattr': Attack(getattr, 'text', 'format'),
        'getattr of an allowed class': Attack(getattr, HistoryBuffer, '__init__'),
        'object array': array,
        'inside a history': history,
    }


@pytest.mark.parametrize('name', list(attacks(Path())))
@pytest.mark.parametrize('way', ['load_from', 'resume', 'last checkpoint', 'test'])
def test_a_file_that_would_run_code_is_refused(config, tmp_path, name, way):
    marker, path = tmp_path / 'marker', tmp_path / 'epoch_9.pth'
    torch.save({'state_dict': {}, 'meta': attacks(marker)[name]}, path)
    if name == 'os.system':
        torch.load(path, weights_only=False)
        assert marker.exists()  # the attack is real
        marker.unlink()
    (tmp_path / 'last_checkpoint').write_text(str(path))
    arguments = {'load_from': ['--cfg-options', f'load_from={path}'], 'resume': ['--resume', path],
                 'last checkpoint': ['--resume'], 'test': []}[way]
    with pytest.raises(UnpicklingError, match=f'{path} was not loaded .*could run any code'):
        if way == 'test':
            main('test', config, path, '--work-dir', tmp_path)
        else:
            main('train', config, '--work-dir', tmp_path, *arguments)
    assert not marker.exists()


def test_a_plain_pickle_is_refused(tmp_path):
    (tmp_path / 'a.pth').write_bytes(pickle.dumps(Attack(os.system, f'touch {tmp_path}/marker')))
    with pytest.raises(UnpicklingError, match='a.pth was not loaded'):
        load(tmp_path / 'a.pth')
    assert not (tmp_path / 'marker').exists()


@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_short_or_no_checkpoint_says_so(trained, tmp_path, data):
    whole = (trained / 'tiny/epoch_2.pth').read_bytes()
    content = data.draw(st.integers(0, len(whole) - 1).map(lambda length: whole[:length]) | st.binary(max_size=99)
                        | st.sampled_from([b'<html>404</html>', b'version https://git-lfs.github.com/spec/v1']))
    (tmp_path / 'a.pth').write_bytes(content)
    with pytest.raises((RuntimeError, UnpicklingError), match='a.pth (was not loaded|cannot be read)'):
        load(tmp_path / 'a.pth')


@pytest.mark.parametrize('address', ['https://host/resnet50_msra-5891d200.pth?a=b',
                                     'open-mmlab://detectron2/resnet50_caffe'])
def test_addresses_are_read_as_safely_and_downloaded_once(tmp_path, monkeypatch, address):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    cached, content = tmp_path / 'hub/checkpoints/resnet50_msra-5891d200.pth', {'weight': torch.ones(2)}

    def download(url, path, progress):
        assert url in (address, 'https://download.openmmlab.com/pretrain/third_party/resnet50_msra-5891d200.pth')
        torch.save(content, path)

    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    assert load(address)['weight'].tolist() == [1, 1] and cached.is_file()
    torch.save(Attack(os.system, f'touch {tmp_path}/marker'), cached)
    with pytest.raises(UnpicklingError, match=f'{cached} was not loaded .*could run any code'):
        load(address)
    assert not (tmp_path / 'marker').exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='no checkpoint .*absent.pth'):
        load(tmp_path / 'absent.pth')


def test_last_checkpoint(tmp_path):
    assert last_checkpoint(tmp_path) is None
    (tmp_path / 'last_checkpoint').write_text('./work_dirs/elsewhere/epoch_3.pth')
    with pytest.raises(FileNotFoundError, match='epoch_3.pth, which is not beside it'):
        last_checkpoint(tmp_path)
    (tmp_path / 'epoch_3.pth').touch()
    assert last_checkpoint(str(tmp_path)) == tmp_path / 'epoch_3.pth'


OTHERS = {
    'model.channels=4': ('of another shape', []),
    'model.encoding.anchors=[5]': (r"encoding=.*anchors=\[5, 45\].* the config has .*anchors=\[5\]", []),
    'model.encoding.type=georope.NoEncoding': ('encoding', []),
    'model.encoding=None': (r"trained with encoding=.*, the config has none", []),
    'model.self_encoding.type=georope.RoPE3D': (r"the config has .*self_encoding=dict\(type='georope.RoPE3D'\)", []),
}


@pytest.mark.parametrize('change', OTHERS)
@pytest.mark.parametrize('way', ['resume', 'test'])
def test_weights_of_another_model_are_refused(trained, tmp_path, change, way):
    message, more = OTHERS[change]
    checkpoint = trained / 'tiny/epoch_2.pth'
    arguments = [checkpoint] if way == 'test' else ['--resume', checkpoint]
    with pytest.raises(RuntimeError, match=f'another model than this config: .*{message}'):
        main('test' if way == 'test' else 'train', trained / 'tiny.py', *arguments, '--work-dir', tmp_path,
             '--cfg-options', change, *more)


def test_encodings_that_do_nothing_may_be_named_or_not(trained, tmp_path):
    main('test', trained / 'tiny.py', trained / 'tiny/epoch_2.pth', '--work-dir', tmp_path,
         '--cfg-options', 'model.self_encoding=None')


ENCODING = "encoding=dict(type='georope.URoPE', anchors=[5, 45])"
SAME = {
    'explicit defaults': "encoding=dict(type='georope.URoPE', anchors=[5, 45], channel_wise=False, bands='axial')",
    'order of keys': "encoding=dict(anchors=[5, 45], type='georope.URoPE')",
    'tuple for list': "encoding=dict(type='georope.URoPE', anchors=(5, 45))",
    'float for integer': "encoding=dict(type='georope.URoPE', anchors=[5.0, 45.0])",
    'braces': "encoding={'type': 'georope.URoPE', 'anchors': [5, 45]}",
    'options of bands': "encoding=dict(type='georope.URoPE', anchors=[5, 45], bands=dict(type='axial', xy=[3, 240]))",
    'no self-encoding': ENCODING + ", self_encoding=dict(type='georope.NoEncoding')",
}
WORLD = "encoding=dict(type='georope.WorldRoPE', {})"
OWN = "encoding=dict(type='mmengine.{}', ground={})"


def other(trained: str, current: str) -> list[str]:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    told = other_encodings(*(f'model = dict(type="M", pts_bbox_head=dict({text}))' for text in (trained, current)),
                           torch.nn.Module())
    assert torch.equal(torch.get_rng_state(), before)  # training goes on with the numbers that it would have had
    return told


@pytest.mark.parametrize('way', SAME)
def test_the_same_encoding_may_be_written_otherwise(way):
    assert other(ENCODING, SAME[way]) == other(SAME[way], ENCODING) == []


def test_what_only_training_sees_is_no_other_model():
    assert not other(WORLD.format('depth_loss_weight=0.5, spread=(0.01, 0.2, 0.5)'),
                     WORLD.format('anchors=[5, 12, 25, 45]'))
    for option, name in (("temperature='none'", 'temperature'), ('max_temperature=2', 'max_temperature'),
                         ('depth_range=(1, 80)', 'predictors.0.log_range'), ('rotate_values=False', 'rotate_values'),
                         ('spread=(0.01, 0.35, 0.4)', 'predictors.0.greatest'),
                         ('query_deviation=[1, 1, 1]', 'query_deviation'), ("bands='mixed'", 'bands.directions')):
        told, = other(WORLD.format(option), WORLD.format(''))
        assert f'{name}' in told.partition('(other ')[2] and told.startswith('trained with encoding=dict(type=')


@MODELS.register_module()
class Declared(URoPE):
    decisive = ('ground', )

    def __init__(self, ground=0, note='', **kwargs):
        super().__init__(**kwargs)
        self.ground = float(ground)


@MODELS.register_module()
class Undeclared(URoPE):
    def __init__(self, ground=0, note='', **kwargs):
        super().__init__(**kwargs)


def test_encodings_of_ones_own():
    """A class that declares what decides it is compared by that, any other by its arguments; one that is gone, too."""
    for name in ('Declared', 'Undeclared', 'Gone'):
        assert not other(OWN.format(name, 1), OWN.format(name, '1.0'))
        assert 'ground' in other(OWN.format(name, 1), OWN.format(name, 2))[0]
        noted = OWN.format(name, "1, note='n'")
        assert bool(other(OWN.format(name, 1), noted)) == (name != 'Declared')
    assert other(OWN.format('Gone', 1), OWN.format('Declared', 1))


def test_checkpoints_without_a_readable_config_load():
    for text in ('', 'x = 1', 'model = dict(', 'model = dict(encoding=None'):
        assert other_encodings(text, f'model = dict({ENCODING})', torch.nn.Module()) == []


@pytest.mark.parametrize('way', ['resume', 'test'])
def test_weights_of_another_model_may_be_accepted(trained, tmp_path, way):
    checkpoint = trained / 'tiny/epoch_2.pth'
    arguments = [checkpoint] if way == 'test' else ['--resume', checkpoint]
    command = ['test' if way == 'test' else 'train', trained / 'tiny.py', *arguments, '--work-dir', tmp_path,
               '--cfg-options', 'model.encoding.anchors=[5]']
    with pytest.raises(RuntimeError, match='use the config that it was trained with, or go on .*: --accept-weights$'):
        main(*command)
    main(*command[:-2], '--accept-weights', *command[-2:])
    assert 'accepted: the checkpoint belongs to another model than this config: trained with' in log(tmp_path)


def test_missing_and_unexpected_tensors_are_named(trained, tmp_path):
    checkpoint = torch.load(trained / 'tiny/epoch_2.pth', weights_only=True)
    weights = checkpoint['state_dict']
    weights['head'] = weights.pop('linear.bias')
    torch.save(checkpoint, tmp_path / 'a.pth')
    with pytest.raises(RuntimeError, match=r'1 tensors missing in the checkpoint \(linear.bias\); '
                                           r'1 tensors not in this model \(head\)'):
        main('test', trained / 'tiny.py', tmp_path / 'a.pth', '--work-dir', tmp_path)


def test_resume_needs_the_state_of_the_optimizer(trained, tmp_path):
    """mmengine would start a new optimizer without a word, e.g. from best_*.pth."""
    checkpoint = torch.load(trained / 'tiny/epoch_2.pth', weights_only=True)
    del checkpoint['optimizer']
    torch.save(checkpoint, tmp_path / 'best.pth')
    with pytest.raises(RuntimeError, match='weights without the state of the optimizer.*load_from=PATH'):
        main('train', trained / 'tiny.py', '--work-dir', tmp_path, '--resume', tmp_path / 'best.pth')


def test_load_from_tells_the_share_that_fits(trained, tmp_path):
    torch.save({'state_dict': {'linear.bias': torch.ones(1), 'other': torch.ones(2)}}, tmp_path / 'a.pth')
    main('train', trained / 'tiny.py', '--work-dir', tmp_path, '--cfg-options', f'load_from={tmp_path}/a.pth')
    assert '1 of the 2 tensors of this model come from the checkpoint, 1 of its 2 are not used; linear 50%' in log(
        tmp_path)
    torch.save({'other': torch.ones(2)}, tmp_path / 'b.pth')
    for accept in ([], ['--accept-weights']):  # there is nothing to accept
        with pytest.raises(RuntimeError, match='load_from: only 0 of the 2 tensors .*linear 0%.*PREFIX\\)$'):
            main('train', trained / 'tiny.py', '--work-dir', tmp_path, *accept, '--cfg-options',
                 f'load_from={tmp_path}/b.pth')


@pytest.mark.parametrize('option, told', [
    ('train_dataloader.batch_size=1', 'iterations, here they are'),
    ('optim_wrapper.optimizer.lr=0.5', 'base_values was .*, here it is 0.5'),
    ('param_scheduler.1.T_max=9', r'param_scheduler\[1\].T_max was'),
])
def test_resume_refuses_another_schedule(trained, tmp_path, option, told):
    """mmengine would take the saved schedule as it is: a rate that collapses, or never falls."""
    with pytest.raises(RuntimeError, match=told):
        main('train', trained / 'tiny.py', '--work-dir', tmp_path, '--resume', trained / 'tiny/epoch_2.pth',
             '--cfg-options', option)


BY_ITERATION = '''
_base_ = {!r}
max_iters = 12
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, T_max=max_iters)]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=3))
log_processor = dict(by_epoch=False)
'''


def test_resume_refuses_another_number_of_iterations(trained, tmp_path):
    """The cosine would stop high, or rise again behind its end."""
    config, work_dir = tmp_path / 'iterations.py', tmp_path / 'w'
    config.write_text(BY_ITERATION.format(str(trained / 'tiny.py')))
    main('train', config, '--work-dir', work_dir)
    checkpoint = work_dir / 'iter_6.pth'
    for number in (9, 18):
        with pytest.raises(RuntimeError, match=f'it ends with max_iters=12, here training has max_iters={number}'):
            main('train', config, '--work-dir', tmp_path / 'other', '--resume', checkpoint, '--cfg-options',
                 f'train_cfg.max_iters={number}')
    main('train', config, '--work-dir', tmp_path / 'same', '--resume', checkpoint)
    assert (tmp_path / 'same/iter_12.pth').is_file()
