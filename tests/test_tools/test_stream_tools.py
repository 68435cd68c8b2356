"""A tiny StreamPETR on streams through the tools: interrupted and resumed, on several ranks, in another order."""
import atexit
import json
import os
import random
import socket
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.multiprocessing as mp
from launching import log, main
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from tiny_stream import INDICES, LENGTHS, steps, write_configs

from georope.datasets import NuScenesCameraDataset
from georope.datasets.info_file import load_infos, save_infos
from georope.engine.hooks import _other_streams
from georope.registry import MODELS

on_cpu = pytest.mark.skipif(get_device() != 'cpu', reason='this machine has a GPU')


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('stream')
    write_configs(folder)
    return folder


def _rank(rank: int, ranks: int, port: int, *arguments) -> None:
    torch.set_num_threads(1)
    atexit._clear()  # what the forked process has registered
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    main(*arguments)
    atexit._run_exitfuncs()  # a forked process ends without them
    assert not torch.distributed.is_initialized()  # else gloo's threads may abort an interpreter at its end


def on_ranks(ranks: int, *arguments) -> None:
    """As torchrun does it, but forked: new interpreters would take ten seconds each to import all."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    launcher = ['--launcher', 'pytorch'] if ranks > 1 else []
    tool, path, *others = arguments
    mp.start_processes(_rank, (ranks, port, tool, path, *launcher, *others), ranks, start_method='fork')


def close(actual: list[dict], expected: list[dict], tolerance: float) -> None:
    assert len(actual) == len(expected)
    for step, (a, b) in enumerate(zip(actual, expected)):
        assert a == pytest.approx(b, rel=tolerance, abs=tolerance), f'step {step}'


# Training


@on_cpu
@pytest.mark.parametrize('name', ['epochs.json', 'iterations.py'])
def test_killed_and_resumed_equals_straight(folder, tmp_path, name):
    """Same frames and losses, although augmentation, dropout and denoising draw and the model remembers."""
    straight, broken = tmp_path / 'straight', tmp_path / 'broken'
    config = folder / name
    on_ranks(1, 'train', config, '--work-dir', straight)
    assert 'streams: 4 sequences in 2 slots, 6 iterations per epoch' in log(straight)
    with pytest.raises(mp.ProcessExitedException, match='SIGKILL'):
        on_ranks(1, 'train', config, '--work-dir', broken, '--cfg-options', 'custom_hooks.0.iteration=9')
    on_ranks(1, 'train', config, '--work-dir', broken, '--resume')
    (tokens, losses), (again, others) = steps(straight), steps(broken)
    assert len(tokens) == 12 and len({token for pair in tokens for token in pair}) == sum(LENGTHS)
    assert again == tokens[:9] + tokens[6:]  # the last whole epoch was the first
    close(others, losses[:9] + losses[6:], 1e-6)


def test_resumed_between_epochs_and_with_a_seed_that_was_drawn(folder, tmp_path):
    """The seed comes from the checkpoint, slots start with empty memory, nothing is loaded to be dropped."""
    config = folder / 'iterations.py'
    options = ['randomness.seed=None', 'default_hooks.checkpoint.interval=4', 'train_cfg.max_iters=8']
    with pytest.raises(mp.ProcessExitedException, match='SIGKILL'):
        on_ranks(1, 'train', config, '--work-dir', tmp_path, '--cfg-options', 'custom_hooks.0.iteration=6', *options)
    load = NuScenesCameraDataset.prepare_data
    with mock.patch.object(NuScenesCameraDataset, 'prepare_data', autospec=True, side_effect=load) as loaded:
        main('train', config, '--work-dir', tmp_path, '--resume', '--cfg-options', *options)
    assert loaded.call_count == 2 * 4
    tokens, _ = steps(tmp_path)
    assert len(tokens) == 6 + 4 and tokens[4:6] == tokens[6:8]


def test_resume_refuses_other_streams(folder, tmp_path):
    """Another number of slots or sequences is another order of frames, which no schedule would tell."""
    config, options = folder / 'iterations.py', ['--cfg-options', 'train_cfg.max_iters=2',
                                                 'default_hooks.checkpoint.interval=1']
    main('train', config, '--work-dir', tmp_path, *options)
    path = tmp_path / 'iter_1.pth'
    told = 'the streams had 2 slots, here they have 1 .*; the streams had 4 sequences, here they have 7 '
    with pytest.raises(RuntimeError, match=told):
        main('train', config, '--work-dir', tmp_path, '--resume', path, *options, 'train_dataloader.batch_size=1',
             'train_dataloader.batch_sampler.seq_split_num=2')
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint['meta'].pop('streams') == dict(slots=2, sequences=4)
    torch.save(checkpoint, path)
    main('train', config, '--work-dir', tmp_path, '--resume', path, *options)
    assert 'does not say how many slots' in log(tmp_path) and len(steps(tmp_path)[0]) == 2 + 1


def test_streams_of_older_checkpoints_are_read():
    """They call the stream slots lanes."""
    saved = dict(lanes=2, sequences=4)
    assert _other_streams(None, saved, dict(slots=2, sequences=4)) == []
    assert 'had 2 slots, here they have 1 ' in _other_streams(None, saved, dict(slots=1, sequences=4))[0]


@on_cpu
@pytest.mark.parametrize('denoising', ['.noise_scale=0.', '=None'])
def test_two_ranks_equal_one(folder, tmp_path, denoising):
    """Five steps of two slots, in some of which a rank has no object; no find_unused_parameters."""
    config, one, two = folder / 'iterations.py', tmp_path / 'one', tmp_path / 'two'
    # Adam would turn rounding errors of gradients near zero, those of the keys' biases, into whole steps.
    options = ['--cfg-options', 'train_cfg.max_iters=5', f'model.pts_bbox_head.denoising{denoising}',
               'model.pts_bbox_head.decoder.dropout=0.', 'default_hooks.checkpoint.interval=3',
               'optim_wrapper.optimizer.type=SGD', 'optim_wrapper.optimizer.lr=0.01']
    on_ranks(1, 'train', config, '--work-dir', one, *options)
    on_ranks(2, 'train', config, '--work-dir', two, *options, 'train_dataloader.batch_size=1')
    tokens, losses = steps(one)
    (first, of_first), (second, of_second) = steps(two), steps(two, 1)
    assert [a + b for a, b in zip(first, second)] == tokens
    assert min(step['loss_bbox'] for step in of_first + of_second) == 0
    mean = [{name: (a[name] + b[name]) / 2 for name in a} for a, b in zip(of_first, of_second)]
    close(mean, losses, 1e-5)
    early, *ends = (torch.load(path, weights_only=True)['state_dict']
                    for path in (one / 'iter_3.pth', one / 'iter_5.pth', two / 'iter_5.pth'))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-5, msg=lambda m, name=name: f'{name}: {m}')
    assert max((ends[0][name] - early[name]).abs().max() for name in early) > 1e-3  # or equality shows nothing


def test_compiled_training_stops_and_resumes_as_eager_does(folder, tmp_path):
    config, eager, compiled = folder / 'iterations.py', tmp_path / 'eager', tmp_path / 'compiled'
    options = ['--cfg-options', 'model.pts_bbox_head.decoder.dropout=0.', 'default_hooks.checkpoint.interval=2',
               'optim_wrapper.optimizer.type=SGD', 'optim_wrapper.optimizer.lr=0.01', '']
    for iterations, resume in ((2, []), (4, ['--resume'])):
        options[-1] = f'train_cfg.max_iters={iterations}'
        main('train', config, '--work-dir', eager, *resume, *options)
        main('train', config, '--work-dir', compiled, '--compile', *resume, *options, 'compile.backend=eager')
    assert 'torch.compile: rotations and decoder' in log(compiled)
    (tokens, losses), (others, found) = steps(eager), steps(compiled)
    assert others == tokens
    close(found, losses, 1e-5)
    expected, weights = (torch.load(path / 'iter_4.pth', weights_only=True)['state_dict'] for path in (eager, compiled))
    assert [*weights] == [*expected]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


# Tests


@pytest.fixture(scope='module')
def checkpoint(folder) -> Path:
    init_default_scope('mmdet3d')
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile(folder / 'epochs.json').model)
    model.init_weights()
    torch.save(model.state_dict(), folder / 'random.pth')
    return folder / 'random.pth'


@pytest.fixture(scope='module')
def detect(folder, checkpoint):
    """Runs tools/test.py; the bytes of the detection JSON."""
    def detect(out: Path, *options, ranks: int = 1) -> bytes:
        on_ranks(ranks, 'test', folder / 'epochs.json', checkpoint, '--work-dir', out, '--cfg-options',
                 f'test_evaluator.jsonfile_prefix={out}', *options)
        return (out / 'results_nusc.json').read_bytes()

    return detect


@pytest.fixture(scope='module')
def alone(detect, tmp_path_factory) -> bytes:
    """Of one process."""
    return detect(tmp_path_factory.mktemp('alone'))


def results(text: bytes) -> dict:
    return json.loads(text)['results']


@on_cpu
def test_a_test_that_ends_at_nan_goes_on_where_it_was(folder, checkpoint, alone, tmp_path):
    """Scenes that were done are not done again, one that was begun is; to the byte what one run gives."""
    with pytest.raises(SystemExit, match=r'not finite for samples \[.* 5 frames, but the dataset has 11.*--go-on'):
        main('test', folder / 'epochs.json', checkpoint, '--work-dir', tmp_path, '--cfg-options',
             f'test_evaluator.jsonfile_prefix={tmp_path}', 'custom_hooks.0.type=NaNHook', 'custom_hooks.0.batch=5')
    with pytest.raises(SystemExit, match='done.pkl is of other weights'):
        torch.save(dict(torch.load(checkpoint), other=torch.zeros(1)), tmp_path / 'other.pth')
        main('test', folder / 'epochs.json', tmp_path / 'other.pth', '--go-on', tmp_path / 'done.pkl')
    main('test', folder / 'epochs.json', checkpoint, '--work-dir', tmp_path, '--go-on', tmp_path / 'done.pkl',
         '--cfg-options', f'test_evaluator.jsonfile_prefix={tmp_path}')
    assert (tmp_path / 'results_nusc.json').read_bytes() == alone


@on_cpu
@pytest.mark.parametrize('ranks', [2, 3])
def test_ranks_write_the_file_of_one(detect, alone, tmp_path, monkeypatch, ranks):
    """To the byte."""
    monkeypatch.chdir(tmp_path)  # mmengine gathers through a folder in the working directory
    assert len(results(alone)) == sum(LENGTHS) and all(results(alone).values())
    assert detect(tmp_path, ranks=ranks) == alone


@on_cpu
@pytest.mark.parametrize('options', [
    ['--cfg-options', 'test_dataloader.batch_size=2'], ['--compile', '--cfg-options', 'compile.backend=eager']])
def test_the_same_but_for_rounding(folder, checkpoint, alone, tmp_path, options):
    """Two scenes at a time, of equal length, give what one at a time does; so does a compiled decoder."""
    main('test', folder / 'epochs.json', checkpoint, '--work-dir', tmp_path, *options,
         f'test_evaluator.jsonfile_prefix={tmp_path}')
    found, expected = results((tmp_path / 'results_nusc.json').read_bytes()), results(alone)
    assert found.keys() == expected.keys()
    for token in expected:
        one, two = (sorted((box['detection_name'], box['detection_score']) for box in some[token])
                    for some in (expected, found))
        assert [name for name, _ in one] == [name for name, _ in two]
        assert [score for _, score in one] == pytest.approx([score for _, score in two], abs=1e-5)


@on_cpu
def test_scenes_do_not_depend_on_each_other(detect, alone, tmp_path, monkeypatch):
    """A scene alone is as after others, also where a second rank has none; but the frames before count."""
    monkeypatch.chdir(tmp_path)
    last, expected = INDICES[-LENGTHS[-1]:], results(alone)
    found = results(detect(tmp_path, f'test_dataloader.dataset.indices={last}'.replace(' ', ''), ranks=2))
    assert len(found) == len(last) and all(found[token] == expected[token] for token in found)
    later = results(detect(tmp_path, f'test_dataloader.dataset.indices={last[1:]}'.replace(' ', '')))
    assert set(later) == set(list(found)[1:]) and all(later[token] != expected[token] for token in later)


@on_cpu
def test_the_order_of_the_info_file_does_not_matter(detect, alone, folder, tmp_path):
    infos = load_infos(folder / 'toy/nuscenes_infos_train.pkl')
    random.Random(0).shuffle(infos['data_list'])
    file = save_infos(infos, tmp_path / 'shuffled.pkl')
    text = detect(tmp_path, f'test_dataloader.dataset.ann_file={file}', f'test_evaluator.ann_file={file}')
    assert results(text) == results(alone) and list(results(text)) != list(results(alone))


def test_a_second_test_gives_the_same(folder, checkpoint, tmp_path):
    """In one process, whose model remembers the first."""
    cfg = Config.fromfile(folder / 'epochs.json')
    cfg.merge_from_dict(dict(work_dir=str(tmp_path), load_from=str(checkpoint), experiment_name='twice',
                             test_evaluator=dict(jsonfile_prefix=str(tmp_path))))
    runner = Runner.from_cfg(cfg)
    texts = []
    for _ in range(2):
        runner.test()
        texts.append((tmp_path / 'results_nusc.json').read_bytes())
    assert texts[0] == texts[1]
