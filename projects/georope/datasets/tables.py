"""The nuScenes tables, read by the devkit, for a data root that may contain nothing but tables."""
from collections import Counter
from pathlib import Path
from typing import Union

import numpy as np
from nuscenes.eval.detection.constants import ATTRIBUTE_NAMES
from nuscenes.eval.detection.utils import category_to_detection_name
from nuscenes.nuscenes import NuScenes
from nuscenes.utils.color_map import get_colormap
from nuscenes.utils.geometry_utils import transform_matrix
from pyquaternion import Quaternion
from tqdm import tqdm

from georope.errors import InputError, MissingInput, refuse
from georope.files import read_json
from georope.messages import some

from .info_file import camera_order
from .table_check import check_tables, key_frames, short

SENSOR_TABLES = ('sensor', 'calibrated_sensor', 'ego_pose', 'scene', 'sample', 'sample_data')
ANNOTATION_TABLES = ('category', 'attribute', 'instance', 'sample_annotation')
REFERENCE_SENSOR = 'LIDAR_TOP'
# A nuScenes category of each detection class.
CATEGORIES = {
    'car': 'vehicle.car', 'truck': 'vehicle.truck', 'trailer': 'vehicle.trailer', 'bus': 'vehicle.bus.rigid',
    'construction_vehicle': 'vehicle.construction', 'bicycle': 'vehicle.bicycle', 'motorcycle': 'vehicle.motorcycle',
    'pedestrian': 'human.pedestrian.adult', 'traffic_cone': 'movable_object.trafficcone',
    'barrier': 'movable_object.barrier',
}


class NuScenesTables(NuScenes):
    """The devkit's database of one version, reduced to what info files need.

    The devkit itself asks for all 13 tables and for the map images. Here only :data:`SENSOR_TABLES` and
    :data:`ANNOTATION_TABLES` are read, of ``sample_data`` only the key frames, and no sensor, map or image file. A test
    version (its name ends in ``test``) may lack annotation tables; they are then empty. All tables are checked
    against :mod:`.schema` first.

    Your own data may differ from nuScenes in four ways, which are converted to the devkit's terms here. ``notes``
    describes what was changed, with counts:

    - Own categories: a ``classes.json`` in the version's folder, {category: nuScenes detection class}, says for
      which each stands. The devkit knows ten classes only. {category: category} makes a class of its own name, one of
      ``own_classes``: info files have a label for it, but devkit and server do not know it. A category that is not in
      the file and has the name of a detection class counts as that class; the others keep their names.
    - Own attributes: those that nuScenes does not have are dropped; of several attributes the first counts.
    - No LiDAR: tables without the sensor LIDAR_TOP get one in the ego frame, with the ego pose of the camera that
      exposes nearest to the sample's timestamp, and no file.
    - No point counts: where no annotation has a LiDAR or radar point (or none has the fields), the counts are
      unknown, -1, which the devkit's filter of boxes without points lets pass.

    Args:
        root: The data root, the folder that holds the version's folder.
        version: ``v1.0-mini``, ``v1.0-trainval``, ``v1.0-test`` or any other folder of tables.

    Raises:
        MissingInput: The version's folder or tables in it are missing; the message lists them.
        InputError: A table cannot be read or its records are faulty, ``classes.json`` names something unknown, or some
            annotations lack the counts of points; the message lists up to ten faults.
    """

    def __init__(self, root: Union[str, Path], version: str) -> None:
        self.dataroot, self.version, self.verbose = str(Path(root).expanduser()), version, False
        self.notes: list[str] = []
        folder = Path(self.table_root)
        if not folder.is_dir():
            found = sorted(path.parent.name for path in Path(self.dataroot).glob('*/sample_data.json'))
            raise MissingInput(f'{folder} does not exist. Versions under {root}: {", ".join(found) or "none"}.')

        optional = ANNOTATION_TABLES if version.endswith('test') else ()
        self.table_names = list(SENSOR_TABLES + ANNOTATION_TABLES)
        missing = [name for name in self.table_names if not (folder / f'{name}.json').is_file()]
        required = [f'{name}.json' for name in missing if name not in optional]
        if required:
            raise MissingInput(f'{folder} lacks {", ".join(required)}. Unpack the metadata of {version} again.')
        # sample_data before ego_pose: what belongs to no key frame, most of both, need not stay in memory.
        names = sorted(set(self.table_names) - set(missing), key=lambda name: (name != 'sample_data', name))
        tables = {name: [] for name in missing}
        for name in tqdm(names, desc=f'reading {self.table_root}', unit='table', disable=None):
            tables[name] = _used(name, read_json(folder / f'{name}.json'), tables)
        check_tables(self.table_root, tables)
        vars(self).update(tables)
        self.has_annotations = bool(self.sample_annotation)
        self._index()
        self._own_categories()
        self._own_attributes()
        self._own_counts()
        if REFERENCE_SENSOR not in {sensor['channel'] for sensor in self.sensor}:
            self._own_reference()

    def _index(self) -> None:
        self._token2ind = {
            name: {record['token']: i for i, record in enumerate(getattr(self, name))} for name in self.table_names
        }
        for record in self.sample:
            record['data'], record['anns'] = {}, []
        for record in self.sample_data:
            calibration = self.get('calibrated_sensor', record['calibrated_sensor_token'])
            sensor = self.get('sensor', calibration['sensor_token'])
            record['sensor_modality'], record['channel'] = sensor['modality'], sensor['channel']
            self.get('sample', record['sample_token'])['data'][record['channel']] = record['token']
        for record in self.sample_annotation:
            instance = self.get('instance', record['instance_token'])
            record['category_name'] = self.get('category', instance['category_token'])['name']
            self.get('sample', record['sample_token'])['anns'].append(record['token'])

    def _own_categories(self) -> None:
        path, classes = Path(self.table_root) / 'classes.json', {}
        known = {record['name'] for record in self.category}
        if path.is_file():
            classes = read_json(path)
            if not isinstance(classes, dict):
                raise InputError(f'{path} must be an object {{category: detection class}}, not {short(classes)}.')
            refuse(str(path), [
                f'{path}: category.json has no {name!r}; it has {sorted(known)}.' if name not in known else
                f'{path}: {name!r} cannot stand for {stand_in!r}; choose one of {list(CATEGORIES)}, or a category of '
                'category.json for a class of that name.'
                for name, stand_in in classes.items()
                if name not in known or stand_in not in [*CATEGORIES, *known]])
        self.own_classes = list(dict.fromkeys(
            stand_in for stand_in in classes.values()
            if stand_in not in CATEGORIES and category_to_detection_name(stand_in) is None))
        stand_ins = {name: CATEGORIES.get(classes.get(name, name), classes.get(name)) for name in known}
        known_to_nuscenes, left_out = set(get_colormap()), Counter()
        for record in self.sample_annotation:
            name = record['category_name']
            record['category_name'] = stand_ins[name] or name
            left_out[name] += not stand_ins[name] and name not in known_to_nuscenes
        if +left_out:
            text = (f'{sum(left_out.values())} of {len(self.sample_annotation)} annotations are of categories without '
                    f'a class: {_counts(left_out)}. {path}, {{category: detection class}}, gives them one of '
                    f'{", ".join(CATEGORIES)}, or {{category: category}} a class of its own name.')
            if sum(left_out.values()) == len(self.sample_annotation):
                raise InputError(text)
            self.notes.append(f'Nothing is trained on some objects: {text}')

    def _own_attributes(self) -> None:
        names = {record['token']: record['name'] for record in self.attribute}
        unknown, several = Counter(), 0
        for record in self.sample_annotation:
            tokens = [token for token in record['attribute_tokens'] if names[token] in ATTRIBUTE_NAMES]
            unknown.update(names[token] for token in record['attribute_tokens'] if token not in tokens)
            several += len(tokens) > 1
            record['attribute_tokens'] = tokens[:1]
        if unknown:
            self.notes.append(f'Attributes that nuScenes does not have count as none: {_counts(unknown)}. It has '
                              f'{", ".join(ATTRIBUTE_NAMES)}.')
        if several:
            self.notes.append(f'{several} annotations have several attributes: the first counts.')

    def _own_counts(self) -> None:
        fields = ('num_lidar_pts', 'num_radar_pts')
        if any(record.get(field) for record in self.sample_annotation for field in fields):
            for record in self.sample_annotation:
                if not all(field in record for field in fields):
                    raise InputError(f'{self.table_root}/sample_annotation.json: annotation {record["token"]} lacks '
                                     f'one of {fields}, which others have: give them in all annotations or in none.')
        else:
            for record in self.sample_annotation:
                record.update(num_lidar_pts=-1, num_radar_pts=0)

    def _own_reference(self) -> None:
        for sample in self.sample:
            records = [self.get('sample_data', sample['data'][name]) for name in camera_order(sample['data'])]
            cameras = [record for record in records if record['sensor_modality'] == 'camera']
            if not cameras:
                continue  # the converter refuses the sample by its token
            nearest = min(cameras, key=lambda camera: abs(camera['timestamp'] - sample['timestamp']))
            token = sample['data'][REFERENCE_SENSOR] = f'{REFERENCE_SENSOR} of {sample["token"]}'
            own = dict(token=token, sample_token=sample['token'], channel=REFERENCE_SENSOR, sensor_modality='lidar',
                       filename='', calibrated_sensor_token=token, ego_pose_token=nearest['ego_pose_token'])
            pose = dict(token=token, translation=[0.0, 0.0, 0.0], rotation=[1.0, 0.0, 0.0, 0.0])
            for table, record in (('sample_data', own), ('calibrated_sensor', pose)):
                self._token2ind[table][token] = len(getattr(self, table))
                getattr(self, table).append(record)

    def scenes_in_order(self) -> list:
        """Scene records by their first timestamp, then token."""
        return sorted(self.scene, key=lambda scene: (
            self.get('sample', scene['first_sample_token'])['timestamp'], scene['token']))

    def samples_of(self, scene: dict) -> list:
        """The key frames of a scene in order of time."""
        samples, token = [], scene['first_sample_token']
        while token:
            samples.append(self.get('sample', token))
            token = samples[-1]['next']
        return samples


def _used(name: str, rows: list, tables: dict) -> list:
    """The records of key frames, where the tables are valid enough to find them."""
    if name not in ('sample_data', 'ego_pose') or not isinstance(rows, list) or not all(
            isinstance(row, dict) for row in rows):
        return rows
    if name == 'sample_data':
        return key_frames(rows)
    frames = tables['sample_data'] if isinstance(tables['sample_data'], list) else []
    used = {row['ego_pose_token'] for row in frames
            if isinstance(row, dict) and isinstance(row.get('ego_pose_token'), str)}
    return [row for row in rows if row.get('token') in used or not isinstance(row.get('token'), str)]


def _counts(counter: Counter) -> str:
    """'car 3, tram 1': the most frequent ones."""
    names = [f'{name} {count}' for name, count in counter.most_common() if count]
    return some(names, 10)


def pose_matrix(record: dict) -> np.ndarray:
    """A record with ``translation`` (3) and ``rotation`` (quaternion w, x, y, z) as a float64 4x4 matrix."""
    return transform_matrix(record['translation'], Quaternion(record['rotation']))
