"""Four consecutive frames of nuScenes through training and test: what the memory holds stays where it is."""
import json

import pytest
import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from model_factory import PC_RANGE, tiny_streampetr

from georope.datasets.converter import create_infos

AUG = dict(type='georope.ImageAug', final_dim=(64, 192), resize_lim=(0.12, 0.13), rand_flip=True)
BEV = dict(type='georope.BEVAug', rot_range=[-0.3925, 0.3925], scale_ratio_range=[0.95, 1.05])


@pytest.fixture(scope='module')
def infos(shared, tmp_path_factory):
    init_default_scope('mmdet3d')
    folder = tmp_path_factory.mktemp('scene0103')
    create_infos(shared / 'data/nuscenes_scene0103', 'v1.0-mini', folder)
    return shared / 'data/nuscenes_scene0103', folder / 'nuscenes_infos_val.pkl'


def loader(infos, training):
    root, ann_file = infos
    pipeline = [dict(type='georope.LoadCameraAnnotations'), dict(AUG, training=training),
                dict(type='georope.LoadCameraImages', decode='reduced'),
                dict(type='ObjectRangeFilter', point_cloud_range=PC_RANGE), *[BEV] * training,
                dict(type='georope.PackCameraInputs')]
    return Runner.build_dataloader(dict(
        dataset=dict(type='georope.NuScenesCameraDataset', data_root=str(root), ann_file=str(ann_file),
                     pipeline=pipeline),
        batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
        batch_sampler=dict(type=f'georope.{"Stream" if training else "Scene"}BatchSampler')), seed=0)


@pytest.mark.parametrize('training', [True, False])
def test_remembered_objects_stay_where_they_are(infos, training, monkeypatch):
    """The true objects, remembered: their points stay in place, within a centimetre of the annotation in the tables.

    So do parked cars; with what they moved since (velocity times age) people meet themselves in the next frame within
    decimetres, which is how well annotated velocities tell. In training every frame is turned and scaled on its own.
    """
    tables = json.loads((infos[0] / 'v1.0-mini/sample_annotation.json').read_text())
    annotated = torch.tensor([row['translation'] for row in tables], dtype=torch.float64)
    model = tiny_streampetr().train(training)
    memory = model.pts_bbox_head.memory
    get, update = memory.get, memory.update
    frames = []

    def remember(embedding, points, velocity):
        boxes = frames[-1]['sample'].gt_instances_3d.bboxes_3d
        frames[-1].update(centres=boxes.gravity_center[None], velocity=boxes.tensor[None, :, 7:])
        update(embedding.new_zeros(1, len(boxes), 32), frames[-1]['centres'], frames[-1]['velocity'])

    monkeypatch.setattr(memory, 'length', 200)  # room for all of them
    monkeypatch.setattr(memory, 'get', lambda *args: frames[-1].setdefault('entries', get(*args)))
    monkeypatch.setattr(memory, 'update', remember)
    for data in loader(infos, training):
        data = model.data_preprocessor(data, training)
        frames.append(dict(sample=data['data_samples'][0]))
        if training:
            total, _ = model.parse_losses(model(**data, mode='loss'))
            total.backward()
            assert total.isfinite()
        else:
            prediction, = model(**data, mode='predict')
            assert prediction.pred_instances_3d.bboxes_3d.tensor.isfinite().all()

    counts = [frame['centres'].shape[1] for frame in frames]
    assert [frame['entries'].filled[0] for frame in frames[:3]] == [4, 4 + counts[0], 4 + counts[0] + counts[1]]
    for i, after in enumerate(frames[1:], 1):
        entries, first = after['entries'], 0
        for before in range(i - 1, -1, -1):  # newest first
            own = slice(first, first + counts[before])
            points, age = entries.points[0, own], entries.times[0, own]
            assert age.tolist() == pytest.approx([0.5 * (i - before)] * len(age), abs=0.06)
            pose = torch.from_numpy(after['sample'].ego_pose)
            assert torch.cdist(points @ pose[:3, :3].T + pose[:3, 3], annotated).amin(1).max() < 0.01
            if before == i - 1:
                velocity = entries.poses[0, own, :2, :2] @ entries.velocity[0, own, :, None].double()
                now = points.clone()
                now[:, :2] += velocity[..., 0] * age[:, None]
                stale = frames[before]['centres'][0].double()
                errors = [torch.cdist(x, after['centres'][0].double()).amin(1).median() for x in (now, points, stale)]
                assert errors[0] < 0.2 < 0.3 < errors[1] and errors[0] < 0.5 * errors[2]
            first = own.stop
