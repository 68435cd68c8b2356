"""A few nuScenes tables, no more than a test needs: ego on a straight line, cameras all around, boxes that move.

Beside them the classes and pipelines of the datasets that read them.
"""
import json
from pathlib import Path

import cv2
import numpy as np
from pyquaternion import Quaternion

from georope.datasets.tables import ANNOTATION_TABLES, SENSOR_TABLES

SIX = ('CAM_FRONT', 'CAM_FRONT_RIGHT', 'CAM_FRONT_LEFT', 'CAM_BACK', 'CAM_BACK_LEFT', 'CAM_BACK_RIGHT')
START = 1533151603.5
CLASSES = ('car', 'truck', 'construction_vehicle', 'bus', 'trailer', 'barrier', 'motorcycle', 'bicycle', 'pedestrian',
           'traffic_cone')
AUG = dict(final_dim=(96, 256), resize_lim=(.7, 1.1), rand_flip=True)
TRAIN = [
    dict(type='georope.LoadCameraAnnotations'),
    dict(type='georope.ImageAug', **AUG),
    dict(type='georope.LoadCameraImages', decode='reduced'),
    dict(type='ObjectRangeFilter', point_cloud_range=[-51.2, -51.2, -5, 51.2, 51.2, 3]),
    dict(type='georope.BEVAug', translation_std=(.5, .5, .1)),
    dict(type='georope.PackCameraInputs'),
]
TEST = [
    dict(type='georope.ImageAug', training=False, **AUG),
    dict(type='georope.LoadCameraImages'),
    dict(type='georope.PackCameraInputs'),
]
# camera axes (x right, y down, z forward) in the ego frame (x forward, y left, z up)
FORWARD = Quaternion(matrix=np.array([[0., 0, 1], [-1, 0, 0], [0, -1, 0]]))


def thing(position, velocity=(0., 0., 0.), category='vehicle.car', size=(2., 4., 1.5), yaw=0., lidar=5, radar=0,
          attribute='vehicle.moving', frames=None):
    """An object: its centre in the ego frame of the scene's first frame; ``frames`` are those that show it."""
    return dict(position=position, velocity=velocity, category=category, size=size, yaw=yaw, lidar=lidar, radar=radar,
                attribute=attribute, frames=frames)


THINGS = (
    thing((15., 1., 1.), velocity=(4., 0., 0.)),
    thing((-20., 3., 1.), category='human.pedestrian.adult', size=(.6, .7, 1.7), yaw=.5, attribute='pedestrian.moving'),
    thing((9., -6., .5), category='movable_object.trafficcone', size=(.4, .4, 1.), lidar=0, radar=0, attribute=None),
    thing((12., 7., .5), category='movable_object.barrier', size=(2., .5, 1.), lidar=0, radar=1, attribute=None),
    thing((30., -2., 1.), category='animal', size=(.5, 1., .7), attribute=None),
    thing((25., 4., 1.), category='vehicle.truck', size=(2.5, 7., 3.), frames=(1, )),
)


def write_nuscenes(root, scenes=(('scene-0061', 3), ('scene-0103', 2)), cameras=SIX, things=THINGS, speed=10., yaw=.3,
                   origin=(1000., 2000., 0.), interval=.5, camera_delay=.04, lidar_tilt=0., size=(180, 320),
                   version='v1.0-mini', annotations=True, images=True, offset=7.):
    """Write tables (and images) under ``root``; returns it.

    ``camera_delay``: seconds between LiDAR and camera, or {camera: seconds}. ``offset``: seconds between scenes' starts
    are 1000; the n-th scene starts n * ``offset`` metres further. The ego drives along its heading ``yaw``.
    """
    root = Path(root)
    tables = {name: [] for name in (*SENSOR_TABLES, *ANNOTATION_TABLES, 'log', 'map')}
    heading = Quaternion(axis=(0, 0, 1), radians=yaw)
    height, width = size

    def add(table, token, **record):
        tables[table].append(dict(token=token, **record))
        return token

    add('log', 'log', logfile='log', vehicle='v', date_captured='2018-01-01', location='singapore-onenorth')
    for name in dict.fromkeys(item['category'] for item in things):
        add('category', f'cat-{name}', name=name, description='')
    for name in dict.fromkeys(item['attribute'] for item in things if item['attribute']):
        add('attribute', f'att-{name}', name=name, description='')
    tilt = Quaternion(axis=(1, 2, 0), degrees=lidar_tilt)
    lidar = dict(translation=[.9, 0., 1.8], rotation=(tilt * Quaternion(axis=(0, 0, 1), degrees=-90)).elements.tolist())
    add('sensor', 'LIDAR_TOP', channel='LIDAR_TOP', modality='lidar')
    add('calibrated_sensor', 'cal-LIDAR_TOP', sensor_token='LIDAR_TOP', camera_intrinsic=[], **lidar)
    for i, name in enumerate(cameras):
        turn = Quaternion(axis=(0, 0, 1), degrees=-360 / max(len(cameras), 1) * i + 3)
        add('sensor', name, channel=name, modality='camera')
        add('calibrated_sensor', f'cal-{name}', sensor_token=name, translation=[1.5 - .3 * i, .1 * i, 1.5],
            rotation=(turn * FORWARD).elements.tolist(),
            camera_intrinsic=[[.8 * width, 0, width / 2 - 3], [0, .8 * width, height / 2 + 2], [0, 0, 1]])

    for number, (scene, frames) in enumerate(scenes):
        begin = START + 1000 * number
        start = np.array(origin) + offset * number
        tokens = [f'{scene}-{i}' for i in range(frames)]
        add('scene', scene, name=scene, log_token='log', nbr_samples=frames, first_sample_token=tokens[0],
            last_sample_token=tokens[-1], description='')
        for i, token in enumerate(tokens):
            time = begin + interval * i
            add('sample', token, timestamp=round(time * 1e6), scene_token=scene, prev=tokens[i - 1] if i else '',
                next=tokens[i + 1] if i + 1 < frames else '')
            for name in ('LIDAR_TOP', *cameras):
                delay = camera_delay.get(name, 0.) if isinstance(camera_delay, dict) else camera_delay
                taken = time if name == 'LIDAR_TOP' else time - delay
                position = start + heading.rotate(np.array([speed * (taken - begin), 0., 0.]))
                add('ego_pose', f'{token}-{name}', timestamp=round(taken * 1e6), translation=position.tolist(),
                    rotation=heading.elements.tolist())
                camera = name != 'LIDAR_TOP'
                file = f'samples/{name}/{token}__{name}.{"jpg" if camera else "pcd.bin"}'
                add('sample_data', f'{token}-{name}', sample_token=token, ego_pose_token=f'{token}-{name}',
                    calibrated_sensor_token=f'cal-{name}', timestamp=round(taken * 1e6), is_key_frame=True,
                    filename=file, height=height if camera else 0, width=width if camera else 0, prev='', next='')
                if camera and images:
                    (root / file).parent.mkdir(parents=True, exist_ok=True)
                    cv2.imwrite(str(root / file), picture(size))
        for k, item in enumerate(things if annotations else ()):
            seen = [i for i in range(frames) if item['frames'] is None or i in item['frames']]
            names = [f'{scene}-{k}-{i}' for i in seen]
            if not names:
                continue
            add('instance', f'{scene}-{k}', category_token=f'cat-{item["category"]}', nbr_annotations=len(names),
                first_annotation_token=names[0], last_annotation_token=names[-1])
            for j, i in enumerate(seen):
                position = np.array(item['position']) + np.array(item['velocity']) * interval * i
                add('sample_annotation', names[j], sample_token=tokens[i], instance_token=f'{scene}-{k}',
                    visibility_token='', attribute_tokens=[f'att-{item["attribute"]}'] if item['attribute'] else [],
                    translation=(start + heading.rotate(position)).tolist(), size=list(item['size']),
                    rotation=(heading * Quaternion(axis=(0, 0, 1), radians=item['yaw'])).elements.tolist(),
                    prev=names[j - 1] if j else '', next=names[j + 1] if j + 1 < len(names) else '',
                    num_lidar_pts=item['lidar'], num_radar_pts=item['radar'])

    add('map', 'map', log_tokens=['log'], category='semantic_prior', filename='maps/none.png')
    folder = root / version
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if annotations or name not in ANNOTATION_TABLES:
            (folder / f'{name}.json').write_text(json.dumps(table))
    return root


def picture(size):
    """A smooth BGR image: blue rises with x, green with y."""
    height, width = size
    image = np.full((height, width, 3), 128, np.uint8)
    image[..., 0] = np.linspace(20, 235, width)[None]
    image[..., 1] = np.linspace(20, 235, height)[:, None]
    return image
