"""Writes a data set as one has it at home: four cameras, no LiDAR, own scenes, categories and splits; see
docs/own_data.md. The pictures are georope's toy world; yours come from your own converter to the same tables.

    python make_data.py data/yard
"""
import argparse
import json
import shutil
import tempfile
from pathlib import Path

from georope.toy import make_toy_nuscenes

VERSION = 'v1.0-yard'
# All that georope reads. Not needed: log, map, visibility.
TABLES = ('sensor', 'calibrated_sensor', 'ego_pose', 'scene', 'sample', 'sample_data', 'category', 'attribute',
          'instance', 'sample_annotation')
CATEGORIES = {'vehicle.truck': 'forklift', 'human.pedestrian.adult': 'worker', 'movable_object.trafficcone': 'bollard'}
# Own category -> the class of the devkit as which it is trained and scored.
CLASSES = {'forklift': 'truck', 'worker': 'pedestrian', 'bollard': 'traffic_cone'}


def make_data(out: Path, train: int = 6, val: int = 2, samples: int = 40, image_size: tuple = (225, 400)) -> Path:
    """A data root of ``train`` and ``val`` scenes with ``samples`` frames each; ``out`` must not exist."""
    if out.exists():
        raise FileExistsError(f'{out} exists: delete it or choose another folder')
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        toy = make_toy_nuscenes(Path(folder) / 'toy', scenes=(train, val), samples_per_scene=samples,
                                image_size=image_size, num_cameras=4)
        tables = {name: json.loads((toy / f'v1.0-mini/{name}.json').read_text()) for name in TABLES}
        splits = make_own(tables, train)
        root = Path(folder) / 'own'
        (root / VERSION).mkdir(parents=True)
        for name, content in dict(tables, splits=splits, classes=CLASSES).items():
            (root / VERSION / f'{name}.json').write_text(json.dumps(content))
        for camera in sorted((toy / 'samples').glob('CAM_*')):
            shutil.move(camera, root / 'samples' / camera.name)
        root.rename(out)
    return out


def make_own(tables: dict, train: int) -> dict:
    """Take out LiDAR, point counts and other objects, give scenes and categories own names; the splits."""
    lidar = {row['token'] for row in tables['sensor'] if row['modality'] == 'lidar'}
    calibrations = {row['token'] for row in tables['calibrated_sensor'] if row['sensor_token'] in lidar}
    poses = {row['ego_pose_token'] for row in tables['sample_data'] if row['calibrated_sensor_token'] in calibrations}
    for name, key, gone in (('sensor', 'token', lidar), ('calibrated_sensor', 'token', calibrations),
                            ('sample_data', 'calibrated_sensor_token', calibrations), ('ego_pose', 'token', poses)):
        tables[name] = [row for row in tables[name] if row[key] not in gone]
    tables['category'] = [dict(row, name=CATEGORIES[row['name']]) for row in tables['category']
                          if row['name'] in CATEGORIES]
    for name, key, table in (('instance', 'category_token', 'category'),
                             ('sample_annotation', 'instance_token', 'instance')):
        kept = {row['token'] for row in tables[table]}
        tables[name] = [row for row in tables[name] if row[key] in kept]
    for row in tables['sample_annotation']:
        del row['num_lidar_pts'], row['num_radar_pts']
    names = []
    for number, row in enumerate(tables['scene']):
        row['name'] = f'yard-{number:02}'
        names.append(row['name'])
    return dict(train=names[:train], val=names[train:])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', type=Path, help='data root to make')
    parser.add_argument('--scenes', type=int, nargs=2, default=(6, 2), metavar=('TRAIN', 'VAL'))
    parser.add_argument('--samples', type=int, default=40, help='frames of a scene, 0.5 s apart')
    args = parser.parse_args()
    print(f'{make_data(args.out.resolve(), *args.scenes, args.samples)}: tables in {VERSION}')
