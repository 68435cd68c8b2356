"""Small models, cameras and samples for the tests of this folder."""
import zlib
from pathlib import Path

import numpy as np
import torch
from mmdet3d.structures import Det3DDataSample
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import nn

from georope.models.box_code import to_lidar_boxes
from georope.models.embeddings import MLN
from georope.registry import MODELS

PC_RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
POSITION_RANGE = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]
STRIDE = 16
UROPE = dict(type='georope.URoPE', num_heads=4, head_dim=8)

RECIPE = dict(
    type='georope.PETRHead',
    num_classes=10,
    pc_range=PC_RANGE,
    position_range=POSITION_RANGE,
    bbox_coder=dict(type='georope.NMSFreeCoder', post_center_range=POSITION_RANGE, max_num=300),
    assigner=dict(
        type='georope.HungarianAssigner3D',
        match_costs=[dict(type='mmdet.FocalLossCost', weight=2.0), dict(type='georope.BBox3DL1Cost', weight=0.25)]),
    loss_cls=dict(type='georope.FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0),
    loss_bbox=dict(type='mmdet.L1Loss', loss_weight=0.25))

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
FOCAL = Config.fromfile(CONFIGS / '_base_/models/focal_head.py').to_dict()['img_roi_head']


def tiny_head(seed=0, **options):
    """A head with initialised weights that are not special: random biases and live modulations."""
    config = dict(RECIPE, in_channels=16, embed_dims=32, num_query=12, denoising=dict(groups=3),
                  decoder=dict(num_layers=2, num_heads=4, feedforward_channels=32, dropout=0.0)) | options
    torch.manual_seed(seed)
    head = MODELS.build(config)
    head.init_weights()
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    _modulate(head)
    return head


def _modulate(model):
    """Conditional norms start as plain ones: without this neither calibration nor ego motion would count in them."""
    for module in model.modules():
        if isinstance(module, MLN):
            nn.init.normal_(module.gamma.weight, std=0.2)
            nn.init.normal_(module.beta.weight, std=0.2)


def tiny_streampetr(head=None, roi=None, dropout=0.0, **options):
    """A detector on images of any size, stride 16; ``head``, ``roi`` and ``options`` override its config."""
    torch.manual_seed(0)
    model = MODELS.build(dict(
        type='georope.StreamPETR',
        data_preprocessor=dict(
            type='georope.FramePreprocessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375],
            bgr_to_rgb=True, pad_size_divisor=32),
        img_backbone=dict(type='mmdet.ResNet', depth=18, base_channels=8, out_indices=(2, 3), norm_eval=True,
                          norm_cfg=dict(type='BN2d')),
        img_neck=dict(type='georope.CPFPN', in_channels=[32, 64], out_channels=32, num_outs=2),
        img_roi_head=dict(FOCAL, in_channels=32, embed_dims=32) | (roi or {}),
        pts_bbox_head=dict(
            RECIPE, type='georope.StreamPETRHead', in_channels=32, embed_dims=32, num_query=10, memory_len=12,
            topk_proposals=4, num_propagated=4, denoising=dict(groups=2), encoding=UROPE,
            decoder=dict(num_layers=2, num_heads=4, feedforward_channels=32, dropout=dropout)
        ) | (head or {})) | options)
    model.init_weights()
    _modulate(model)
    return model.train()  # norm_eval acts there


def cameras(num=2, seed=0, size=(64, 96)):
    """lidar2img and cam2img, float64 (num, 4, 4), of cameras that look around, a little off the ideal."""
    rng = np.random.RandomState(seed)
    height, width = size
    cam2img = np.tile(np.eye(4), (num, 1, 1))
    cam2img[:, 0, 0] = width * rng.uniform(0.6, 1.2, num)
    cam2img[:, 1, 1] = width * rng.uniform(0.6, 1.2, num)
    cam2img[:, :2, 2] = (width / 2, height / 2)
    lidar2cam = np.tile(np.eye(4), (num, 1, 1))
    for i, yaw in enumerate(2 * np.pi * np.arange(num) / num + rng.uniform(-0.1, 0.1, num)):
        right, forward = (np.sin(yaw), -np.cos(yaw), 0), (np.cos(yaw), np.sin(yaw), 0)
        lidar2cam[i, :3, :3] = (right, (0, 0, -1), forward)
    lidar2cam[:, :3, 3] = rng.uniform(-0.5, 0.5, (num, 3))
    return cam2img @ lidar2cam, cam2img


def boxes(num, seed=0):
    """(num, 9), gravity centre."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(num, 9, generator=generator)
    lower = torch.tensor([-40, -40, -2, 0.5, 0.5, 0.5, -3.1, -5, -5.0])
    upper = torch.tensor([40, 40, 1, 8, 3, 3, 3.1, 5, 5.0])
    return lower + (upper - lower) * uniform


def sample(token='a', num_boxes=3, seed=0, size=(64, 96), num_cameras=2, **meta):
    """A data sample with ground truth; ``meta`` overrides its meta information."""
    lidar2img, cam2img = cameras(num_cameras, seed, size)
    data_sample = Det3DDataSample()
    data_sample.set_metainfo(dict(token=token, lidar2img=lidar2img, cam2img=cam2img, img_shape=[size] * num_cameras,
                                  cam_names=[f'CAM_{i}' for i in range(num_cameras)]) | meta)
    data_sample.gt_instances_3d = InstanceData(
        bboxes_3d=to_lidar_boxes(boxes(num_boxes, seed)),
        labels_3d=torch.arange(num_boxes) % 10)
    return data_sample


def stream_sample(scene='s', frame=0, num_boxes=3, seed=0, prev_exists=None, **meta):
    """A frame of a vehicle that drives 4 m and turns 0.1 rad every half second, with 2D labels."""
    pose, angle = np.eye(4), 0.1 * frame
    pose[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    pose[:2, 3] = (1200 + 4 * frame, -700)
    data_sample = sample(f'{scene}-{frame}', num_boxes, seed, **dict(
        scene_token=scene, timestamp=0.5 * frame, ego_pose=pose,
        prev_exists=frame > 0 if prev_exists is None else prev_exists) | meta)
    cameras = data_sample.cam_names
    generator = torch.Generator().manual_seed(seed)
    data_sample.gt_cameras = []
    for count in np.arange(len(cameras)) % 2 * num_boxes:  # every other camera sees nothing
        corner = torch.rand(count, 2, generator=generator) * torch.tensor([70, 40])
        size = torch.rand(count, 2, generator=generator) * 20 + 4
        data_sample.gt_cameras.append(InstanceData(
            bboxes=torch.cat((corner, corner + size), 1), centers_2d=corner + size / 2, depths=torch.ones(count),
            labels=torch.arange(count) % 10))
    return data_sample


def features(batch=1, num_cameras=2, size=(64, 96), channels=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, num_cameras, channels, size[0] // STRIDE, size[1] // STRIDE, generator=generator)


def metas(data_samples):
    return [data_sample.metainfo for data_sample in data_samples]


def seeded(name, shape, rule):
    """The fixtures' seeded values (tests/golden/README.md): 'normal*S', 'normal*S+1' or 'uniform01'."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    count = int(np.prod(shape))
    if rule == 'uniform01':
        values = rng.uniform(0, 1, count).astype(np.float32)
    else:
        scale, _, shift = rule.removeprefix('normal*').partition('+')
        values = rng.standard_normal(count).astype(np.float32) * np.float32(scale) + np.float32(shift or 0)
    return torch.from_numpy(values.reshape(shape))
