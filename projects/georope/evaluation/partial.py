"""The finished part of a test that stopped: kept in a file and used by the next run (``tools/test.py --go-on``)."""
from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.registry import init_default_scope

from georope.datasets import SceneBatchSampler
from georope.errors import InputError, MissingInput
from georope.files import written_beside
from georope.registry import DATA_SAMPLERS, DATASETS

NAME = 'done.pkl'
METRICS = ('georope.CameraMetric', 'georope.NuScenesMetric')


def save_done(folder: str, frames: Mapping[str, dict[str, Any]], model: str) -> str:
    """Write global boxes by sample token (see ``results``) and the digest of the weights; the path of the file."""
    path = os.path.join(folder, NAME)
    with written_beside(path) as beside, open(beside, 'wb') as file:
        pickle.dump(dict(done=dict(frames), model=model), file)
    return path


def load_done(path: str, model: str) -> dict[str, dict[str, Any]]:
    """Global boxes by sample token, of the same weights.

    Raises:
        MissingInput: no such file.
        InputError: it is another file, or of other weights.
    """
    if not os.path.isfile(path):
        raise MissingInput(f'{path} does not exist: a test that ended names the file it wrote')
    try:
        with open(path, 'rb') as file:
            content = pickle.load(file)
        done, weights = content['done'], content['model']
    except Exception as error:  # unpickling may raise anything
        raise InputError(f'{path} is no file of a test that ended ({type(error).__name__}: {error})') from None
    if weights != model:
        raise InputError(f'{path} is of other weights: results of two models cannot be mixed')
    return done


def digest_of(checkpoint: str) -> str:
    """SHA-256 of a file; of an address, the address itself."""
    if '://' in checkpoint:
        return checkpoint
    digest = hashlib.sha256()
    with open(os.path.expanduser(checkpoint), 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def go_on(cfg: Config, path: str, model: str) -> None:
    """Remove what is done from the test of a config. In a test on streams, only whole scenes count as done.

    Args:
        cfg: the test's config; ``test_dataloader.dataset.indices`` and the evaluator change.
        path: the file of the test that ended.
        model: digest of the weights.
    """
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]
    if not all(evaluator.type in METRICS for evaluator in evaluators):
        raise InputError(f'--go-on needs test_evaluators of {" or ".join(METRICS)}, which take up what is done')
    init_default_scope(cfg.default_scope)
    data, done = cfg.test_dataloader.dataset, load_done(path, model)
    dataset, indices = DATASETS.build(data), data.get('indices')
    if not (indices is None or isinstance(indices, list)):
        raise InputError('--go-on needs test_dataloader.dataset.indices as a list, or none')
    tokens = [dataset.get_data_info(i)['token'] for i in range(len(dataset))]
    kind = (cfg.test_dataloader.get('batch_sampler') or {}).get('type', '')
    streams = kind and issubclass(DATA_SAMPLERS.get(kind), SceneBatchSampler)
    groups = dataset.scenes() if streams else [[i] for i in range(len(tokens))]
    left = sorted(i for group in groups if not all(tokens[i] in done for i in group) for i in group)
    if not left:
        raise InputError(f'{path} has all {len(tokens)} frames of the test: nothing is left to do')
    data.indices = left if indices is None else [indices[i] for i in left]
    for evaluator in evaluators:
        evaluator.go_on = path
    print(f'--go-on: {len(tokens) - len(left)} of {len(tokens)} frames are done, {len(left)} are left')


def run_test(runner, model: str) -> None:
    """``runner.test()``; if predictions are not finite, all processes first write what is done.

    Raises:
        InputError: predictions are not finite; names the samples and the file with what was done.
    """
    for metric in runner.test_loop.evaluator.metrics:
        metric.model = model
    try:
        runner.test()
    except FloatingPointError as error:
        runner.logger.error(str(error))
        # The others come here when they are through their share: no one waits in vain.
        try:
            runner.test_evaluator.evaluate(len(runner.test_dataloader.dataset))
        except InputError as told:  # in the main process
            raise InputError(f'{error}. {told}') from error
        except RuntimeError:  # it has ended with that, and its store with it
            if is_main_process():
                raise
        raise
