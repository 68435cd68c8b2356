"""The nuScenes tables, through the devkit, for a root that may hold nothing else."""
from pathlib import Path
from typing import Union

import numpy as np
from nuscenes.nuscenes import NuScenes
from pyquaternion import Quaternion

SENSOR_TABLES = ('sensor', 'calibrated_sensor', 'ego_pose', 'scene', 'sample', 'sample_data')
ANNOTATION_TABLES = ('category', 'attribute', 'instance', 'sample_annotation')


class NuScenesTables(NuScenes):
    """The devkit's database of one version, reduced to what an info file is made of.

    The devkit itself asks for all 13 tables and for the map images. Here only :data:`SENSOR_TABLES` and
    :data:`ANNOTATION_TABLES` are read, of ``sample_data`` only the key frames, and no sensor, map or image file. A test
    version (its name ends in ``test``) may lack annotation tables; they are then empty.

    Args:
        root: The data root, the folder that holds the version's folder.
        version: ``v1.0-mini``, ``v1.0-trainval``, ``v1.0-test`` or any other folder of tables.

    Raises:
        FileNotFoundError: The version's folder or tables in it are missing; the message lists them.
    """

    def __init__(self, root: Union[str, Path], version: str) -> None:
        self.dataroot, self.version, self.verbose = str(root), version, False
        folder = Path(self.table_root)
        if not folder.is_dir():
            found = sorted(path.parent.name for path in Path(root).glob('*/sample_data.json'))
            raise FileNotFoundError(f'{folder} does not exist. Versions under {root}: {", ".join(found) or "none"}.')

        optional = ANNOTATION_TABLES if version.endswith('test') else ()
        self.table_names = list(SENSOR_TABLES + ANNOTATION_TABLES)
        missing = [name for name in self.table_names if not (folder / f'{name}.json').is_file()]
        required = [f'{name}.json' for name in missing if name not in optional]
        if required:
            raise FileNotFoundError(f'{folder} lacks {", ".join(required)}. Unpack the metadata of {version} again.')
        for name in self.table_names:
            setattr(self, name, [] if name in missing else self.__load_table__(name))
        self.sample_data = [record for record in self.sample_data if record['is_key_frame']]
        self.has_annotations = bool(self.sample_annotation)
        self._index()

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

    def scenes_in_order(self) -> list:
        """Scene records by their first timestamp, then token."""
        return sorted(self.scene, key=lambda scene: (
            self.get('sample', scene['first_sample_token'])['timestamp'], scene['token']))

    def samples_of(self, scene: dict) -> list:
        """The key frames of a scene in order of time.

        Raises:
            ValueError: The chain of ``next`` tokens does not have ``nbr_samples`` members or goes back in time.
        """
        samples, token = [], scene['first_sample_token']
        while token and len(samples) <= scene['nbr_samples']:
            samples.append(self.get('sample', token))
            token = samples[-1]['next']
        times = [sample['timestamp'] for sample in samples]
        if len(samples) != scene['nbr_samples'] or times != sorted(set(times)):
            raise ValueError(
                f'{self.table_root}: {scene["name"]} should have {scene["nbr_samples"]} samples linked in order of '
                f'time; sample.json links {len(samples)}. The tables are damaged.')
        return samples


def pose_matrix(record: dict) -> np.ndarray:
    """A record with ``translation`` (3) and ``rotation`` (quaternion w, x, y, z) as a float64 4x4 matrix."""
    matrix = np.eye(4)
    matrix[:3, :3] = Quaternion(record['rotation']).rotation_matrix
    matrix[:3, 3] = record['translation']
    return matrix
