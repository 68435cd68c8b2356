"""A test on streams with a model that remembers: the result file does not depend on the number of ranks or lanes."""
import json

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import CLASSES
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from small_nuscenes import write_nuscenes

from georope.datasets.converter import create_infos

SCENES = [('scene-0061', 4), ('scene-0553', 1), ('scene-0655', 3), ('scene-0757', 3)]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = write_nuscenes(tmp_path_factory.mktemp('scenes'), scenes=SCENES, images=False)
    create_infos(root, 'v1.0-mini')
    return root


class Remembering:
    """Predicts one car as far ahead as it has seen frames since it last started anew."""

    def __init__(self):
        self.memory = torch.zeros(0)

    def predict(self, samples):
        if len(self.memory) != len(samples):
            self.memory = torch.zeros(len(samples))
        exists = torch.tensor([sample.prev_exists for sample in samples])
        self.memory = torch.where(exists, self.memory, 0.) + 1
        for sample, seen in zip(samples, self.memory):
            box = torch.tensor([[seen, 0, 0, 4, 2, 1.5, 0, 0, 0]])
            sample.pred_instances_3d = InstanceData(
                bboxes_3d=LiDARInstance3DBoxes(box, box_dim=9), scores_3d=torch.tensor([.5]),
                labels_3d=torch.tensor([0]))
        return samples


def work(rank, root, out, ranks=1, batch_size=1, sampler='SceneBatchSampler'):
    if ranks > 1:
        torch.set_num_threads(1)
        dist.init_process_group('gloo', f'file://{out}/store', rank=rank, world_size=ranks)
    loader = Runner.build_dataloader(dict(
        batch_size=batch_size, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
        batch_sampler=dict(type=f'georope.{sampler}'),
        dataset=dict(type='georope.NuScenesCameraDataset', data_root=str(root), ann_file='nuscenes_infos_train.pkl',
                     pipeline=[dict(type='georope.PackCameraInputs')], metainfo=dict(classes=CLASSES), test_mode=True)))
    evaluator = Evaluator(dict(type='georope.NuScenesMetric', data_root=str(root), format_only=True,
                               ann_file=f'{root}/nuscenes_infos_train.pkl', jsonfile_prefix=str(out)))
    evaluator.dataset_meta = loader.dataset.metainfo
    model = Remembering()
    for batch in loader:
        evaluator.process(data_samples=model.predict(batch['data_samples']), data_batch=batch)
    evaluator.evaluate(len(loader.dataset))
    if ranks > 1:
        dist.destroy_process_group()


def result(folder):
    return (folder / 'results_nusc.json').read_bytes()


@pytest.fixture(scope='module')
def one(root, tmp_path_factory):
    out = tmp_path_factory.mktemp('one')
    work(0, root, out)
    return result(out)


def test_memory_reaches_back_to_the_start_of_the_scene(one):
    boxes = {token: box['translation'] for token, (box, ) in json.loads(one)['results'].items()}
    assert len(boxes) == 11
    for scene, length in SCENES:
        for i in range(1, length):  # per frame the ego drives 5 m, and the box moves 1 m further ahead
            step = torch.tensor(boxes[f'{scene}-{i}']) - torch.tensor(boxes[f'{scene}-{i - 1}'])
            assert step[:2].norm() == pytest.approx(26 ** .5, rel=1e-3)


@pytest.mark.parametrize('ranks', [2, 3, 5])
def test_ranks_write_the_file_of_one(root, one, tmp_path, monkeypatch, ranks):
    """USERS 47, 48: four scenes of 4, 1, 3 and 3 frames; of five ranks one has nothing to do."""
    monkeypatch.chdir(tmp_path)  # mmengine gathers through a folder in the working directory
    mp.start_processes(work, (str(root), str(tmp_path), ranks), ranks, start_method='fork')
    assert result(tmp_path) == one


def test_lanes_write_the_file_of_one(root, one, tmp_path):
    work(0, root, tmp_path, batch_size=3)
    assert result(tmp_path) == one
