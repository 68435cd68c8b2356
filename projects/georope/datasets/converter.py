"""nuScenes tables -> mmdet3d v2 info files, with additions: scenes, order, per-camera ego poses, image sizes.

Frames and matrices (all 4x4, metres, float64; ``a2b`` maps points of frame a to frame b):

- ``ego2global`` of an entry is the ego pose at the time of the LiDAR sweep, ``images[CAM]['ego2global']`` the ego pose
  at the time of that camera's exposure (up to 50 ms apart, so up to half a metre at city speed).
- ``lidar2cam = inv(cam2ego) @ inv(camera's ego2global) @ ego2global @ lidar2ego``: it goes through both ego poses, so a
  static point projects to where that camera saw it. Objects that move are not compensated.
- Boxes are in the LiDAR frame at the time of the sweep: x, y, z of the CENTRE, length, width, height, yaw
  (counter-clockwise from x). Velocities are the devkit's global ones in the axes of the LiDAR frame, in m/s; NaN where
  the tables do not define them.

Entries hold what mmdet3d's converter writes except ``lidar_sweeps``, and in addition: ``scene_token``, ``scene_name``,
``prev``, ``next`` (sample tokens, '' at the ends), ``frame_idx``; per camera ``ego2global``, ``height``, ``width``; per
instance ``instance_token``, ``attr_name`` ('' where there is none). ``img_path`` is a bare file name, as mmdet3d has
it, of images in ``samples/{camera}``, and a path below the data root of images elsewhere.

Own data without LiDAR, point counts or nuScenes' categories: see :class:`NuScenesTables` and docs/own_data.md. Without
LiDAR, "LiDAR frame" above and everywhere else means the ego frame.
"""
from collections.abc import Sequence
from pathlib import Path
from typing import Optional, Union

import numpy as np
from nuscenes.eval.detection.utils import category_to_detection_name
from tqdm import tqdm

from georope.errors import InputError, refuse
from georope.files import writable_folder
from georope.messages import some

from .calibration import as_pose
from .camera_labels import box_corners, image_box, yaw_of
from .info_file import camera_order, in_scene_order, load_infos, required, save_infos
from .set_check import check_times, key_frame_cameras, missing_images, whole_frames
from .splits import splits_of
from .tables import REFERENCE_SENSOR, NuScenesTables, pose_matrix

# mmdet3d's order: the label of a class is its index here.
CLASSES = ('car', 'truck', 'trailer', 'bus', 'construction_vehicle', 'bicycle', 'motorcycle', 'pedestrian',
           'traffic_cone', 'barrier')
ATTRIBUTES = ('cycle.with_rider', 'cycle.without_rider', 'pedestrian.moving', 'pedestrian.standing',
              'pedestrian.sitting_lying_down', 'vehicle.moving', 'vehicle.parked', 'vehicle.stopped', 'None')
# An info file is called as the part of the split that is not its version's: nuscenes_infos_train.pkl.
FILE_NAMES = dict(mini_train='train', mini_val='val')


def create_infos(root: Union[str, Path], version: str, out_dir: Optional[Union[str, Path]] = None,
                 prefix: str = 'nuscenes', only_existing: bool = False) -> list[Path]:
    """Write ``{prefix}_infos_{split}.pkl`` for every split of ``version`` that has scenes.

    Splits are the devkit's (train and val, or test) and those of a ``splits.json`` ({name: [scene names]}) in the
    version's folder. Only tables are read. Suspicious content is printed first, with counts.

    Args:
        root: Data root.
        version: Folder of the tables under ``root``.
        out_dir: Where the files go, default ``root``.
        prefix: Begin of the files' names.
        only_existing: Leave out scenes of which an image is missing: those whose blobs were not downloaded.

    Returns:
        The files written.

    Raises:
        MissingInput: The version or one of its tables is missing.
        InputError: The tables are faulty, no scene of any split is there, or ``out_dir`` cannot be written to.
    """
    out_dir = Path(out_dir or root).expanduser()
    writable_folder(out_dir)
    tables = NuScenesTables(root, version)
    splits = splits_of(tables.version, tables.dataroot, {scene['name'] for scene in tables.scene})
    # splits.json may have its own train and val: they win.
    splits = {**{FILE_NAMES.get(name, name): names for name, names in splits.items()},
              **{name: names for name, names in splits.items() if name not in FILE_NAMES}}
    scenes = [scene for scene in tables.scenes_in_order() if any(scene['name'] in names for names in splits.values())]
    if not scenes:
        raise InputError(
            f'None of the scenes of {tables.table_root} ({some([scene["name"] for scene in tables.scene], 3)}) is in '
            f'the splits {", ".join(splits) or "of the devkit"}: write your own splits as '
            f'{tables.table_root}/splits.json, {{"train": ["scene name", ...], "val": [...]}}.')
    _say(tables.notes + check_times(tables))
    if only_existing:
        scenes = _existing(tables, scenes)
    blind, notes = whole_frames(tables, [sample for scene in scenes for sample in tables.samples_of(scene)])
    _say(notes)

    written = []
    for split, names in splits.items():
        chosen = [scene for scene in scenes if scene['name'] in names]
        samples = [(scene, i, sample) for scene in chosen for i, sample in enumerate(tables.samples_of(scene))
                   if sample['token'] not in blind]
        if not samples:
            print(f'{split}: none of its scenes is in {tables.table_root}, no file written')
            continue
        data_list = [
            frame_info(tables, scene, i, sample, sample_idx)
            for sample_idx, (scene, i, sample) in enumerate(tqdm(samples, desc=split, unit='frame'))
        ]
        _say(_unknown_velocities(data_list))
        path = save_infos(dict(metainfo=_metainfo(tables), data_list=data_list),
                          out_dir / f'{prefix}_infos_{split}.pkl')
        print(f'{path}: {len(chosen)} scenes, {len(data_list)} frames')
        written.append(path)
    return written


def update_infos(files: Sequence[Union[str, Path]], root: Union[str, Path], version: str,
                 out_dir: Optional[Union[str, Path]] = None) -> list[Path]:
    """Add what mmdet3d's v2 info files lack (see the module's text) to existing ones; all they hold is kept.

    Args:
        files: Info files of format v2.
        root: Data root with the tables.
        version: Folder of the tables under ``root``.
        out_dir: Where the files go, default: the files themselves are replaced.

    Returns:
        The files written: all, or none if one cannot be updated.

    Raises:
        InputError: A file is not v2, or a sample, camera or box of it is not in the tables; the message names it.
    """
    files = [Path(file).expanduser() for file in files]
    targets = [Path(out_dir).expanduser() / file.name if out_dir else file for file in files]
    for target in targets:
        writable_folder(target.parent)
    contents = [load_infos(file) for file in files]  # before the tables, which take longer
    tables = NuScenesTables(root, version)
    _say(tables.notes + check_times(tables))
    order = {}
    for scene in tables.scene:
        order.update({sample['token']: (scene, i) for i, sample in enumerate(tables.samples_of(scene))})
    for file, infos in zip(files, contents):
        refuse(str(file), [
            f'{file}: sample {entry["token"]} is not in {tables.table_root}. Is --version right?'
            for entry in infos['data_list'] if entry['token'] not in order])
    for file, infos in zip(files, contents):
        for entry in tqdm(infos['data_list'], desc=file.name, unit='frame'):
            _update_entry(tables, *order[entry['token']], entry, f'{file}: sample {entry["token"]}: ')
        infos['data_list'] = in_scene_order(infos['data_list'])
    for target, infos in zip(targets, contents):
        print(f'{save_infos(infos, target)}: {len(infos["data_list"])} frames updated')
    return targets


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        print(f'WARNING: {note}', flush=True)


def _existing(tables: NuScenesTables, scenes: list[dict]) -> list[dict]:
    """The scenes of which all images are there."""
    missing = missing_images(tables, [sample for scene in scenes for sample in tables.samples_of(scene)])
    found = [scene for scene in scenes if scene['token'] not in missing]
    if missing:
        count, example = sum(map(len, missing.values())), next(iter(missing.values()))[0]
        text = (f'{len(missing)} of {len(scenes)} scenes are left out: {count} of their images are not below '
                f'{tables.dataroot}, e.g. {example}')
        if not found:
            raise InputError(f'--only-existing: {text}. No scene is left.')
        print(text)
    return found


def _unknown_velocities(data_list: Sequence[dict]) -> list[str]:
    velocities = [item['velocity'][0] for entry in data_list for item in entry['instances']]
    if not velocities or not np.isnan(velocities).all():
        return []
    return [f'None of the {len(velocities)} objects has a velocity: the devkit takes it from the annotations before '
            'and after (prev, next), which may be 1.5 s away. Nothing is learnt of velocities.']


def frame_info(tables: NuScenesTables, scene: dict, frame_idx: int, sample: dict, sample_idx: int) -> dict:
    """One entry of ``data_list``: see the module's text."""
    lidar = tables.get('sample_data', sample['data'][REFERENCE_SENSOR])
    lidar2ego = pose_matrix(tables.get('calibrated_sensor', lidar['calibrated_sensor_token']))
    ego2global = pose_matrix(tables.get('ego_pose', lidar['ego_pose_token']))
    entry = dict(
        sample_idx=sample_idx,
        token=sample['token'],
        timestamp=sample['timestamp'] / 1e6,
        ego2global=ego2global.tolist(),
        lidar_points=dict(lidar2ego=lidar2ego.tolist(), **(
            dict(num_pts_feats=5, lidar_path=Path(lidar['filename']).name) if lidar['filename'] else {})),
        images={name: _camera_info(tables, sample['data'][name], ego2global @ lidar2ego)
                for name in camera_order(key_frame_cameras(tables, sample))},
        instances=[],
        **_links(scene, frame_idx, sample))
    if tables.has_annotations:
        annotations = _Annotations(tables, sample)
        entry['instances'] = annotations.instances(ego2global @ lidar2ego)
        entry['cam_instances'] = {
            name: annotations.camera_instances(image) for name, image in entry['images'].items()
        }
    return entry


class _Annotations:
    """All annotations of one sample, in the global frame."""

    def __init__(self, tables: NuScenesTables, sample: dict) -> None:
        records = [tables.get('sample_annotation', token) for token in sample['anns']]
        poses = np.array([pose_matrix(record) for record in records]).reshape(-1, 4, 4)
        self.records = records
        self.centers, self.rotations = poses[:, :3, 3], poses[:, :3, :3]
        self.sizes = np.array([record['size'] for record in records], dtype=float).reshape(-1, 3)
        self.corners = box_corners(self.centers, self.sizes, self.rotations)
        velocities = np.array([tables.box_velocity(record['token']) for record in records]).reshape(-1, 3)
        self.velocities = velocities * (1, 1, 0)  # what the devkit evaluates: the motion in the global x, y plane
        self.labels = [label_of(record['category_name'], tables.own_classes) for record in records]
        self.attributes = [
            tables.get('attribute', record['attribute_tokens'][0])['name'] if record['attribute_tokens'] else ''
            for record in records
        ]

    def boxes(self, lidar2global: np.ndarray) -> np.ndarray:
        """(n, 7) x, y, z (centre), length, width, height, yaw in the LiDAR frame."""
        rotation, translation = lidar2global[:3, :3], lidar2global[:3, 3]
        return np.concatenate([
            (self.centers - translation) @ rotation, self.sizes[:, [1, 0, 2]],
            yaw_of(rotation.T @ self.rotations)[:, None]
        ], axis=1)

    def instances(self, lidar2global: np.ndarray) -> list[dict]:
        velocities = (self.velocities @ lidar2global[:3, :3])[:, :2]
        return [
            dict(
                bbox_label=label,
                bbox_label_3d=label,
                bbox_3d=box.tolist(),
                bbox_3d_isvalid=record['num_lidar_pts'] + record['num_radar_pts'] != 0,  # -1: unknown
                velocity=velocity.tolist(),
                num_lidar_pts=record['num_lidar_pts'],
                num_radar_pts=record['num_radar_pts'],
                instance_token=record['instance_token'],
                attr_name=attribute) for record, label, attribute, box, velocity in zip(
                    self.records, self.labels, self.attributes, self.boxes(lidar2global), velocities)
        ]

    def camera_instances(self, image: dict) -> list[dict]:
        """mmdet3d's labels of one camera; objects of other classes or with their centre behind the camera have none."""
        global2cam = np.linalg.inv(np.array(image['ego2global']) @ np.array(image['cam2ego']))
        rotation, translation = global2cam[:3, :3], global2cam[:3, 3]
        cam2img = np.array(image['cam2img'])
        centers = self.centers @ rotation.T + translation
        corners = self.corners @ rotation.T + translation
        yaws = -yaw_of(rotation @ self.rotations)
        velocities = (self.velocities @ rotation.T)[:, [0, 2]]
        found = []
        for i, label in enumerate(self.labels):
            if label < 0 or centers[i, 2] <= 0:
                continue
            bbox = image_box(corners[i], cam2img, image['width'], image['height'])
            if bbox is None:
                continue
            width, length, height = self.sizes[i].tolist()
            projected = cam2img @ centers[i]
            found.append(dict(
                bbox_label=label,
                bbox_label_3d=label,
                bbox=list(bbox),
                bbox_3d_isvalid=True,  # as mmdet3d writes it
                bbox_3d=[*centers[i].tolist(), length, height, width, float(yaws[i])],
                velocity=velocities[i].tolist(),
                center_2d=(projected[:2] / projected[2]).tolist(),
                depth=float(centers[i, 2]),
                attr_label=ATTRIBUTES.index(self.attributes[i] or 'None')))
        return found


def label_of(category: str, own_classes: Sequence[str] = ()) -> int:
    """Index of a category's detection class in :data:`CLASSES` followed by ``own_classes``; -1 if it has none."""
    name = category_to_detection_name(category) or category
    known = (*CLASSES, *own_classes)
    return known.index(name) if name in known else -1


def _metainfo(tables: NuScenesTables) -> dict:
    categories = {name: i for i, name in enumerate((*CLASSES, *tables.own_classes))}
    used = {record['category_name'] for record in tables.sample_annotation}
    categories.update({name: -1 for name in sorted(used) if label_of(name, tables.own_classes) < 0})
    return dict(categories=categories, dataset='nuscenes', version=tables.version, info_version='1.1')


def _links(scene: dict, frame_idx: int, sample: dict) -> dict:
    return dict(scene_token=scene['token'], scene_name=scene['name'], prev=sample['prev'], next=sample['next'],
                frame_idx=frame_idx)


def _image_path(record: dict) -> str:
    """A bare name in ``samples/{camera}``, as mmdet3d has it; elsewhere the path below the root."""
    folder, _, name = record['filename'].rpartition('/')
    return name if folder == f'samples/{record["channel"]}' else record['filename']


def _camera_info(tables: NuScenesTables, token: str, lidar2global: np.ndarray) -> dict:
    record = tables.get('sample_data', token)
    calibration = tables.get('calibrated_sensor', record['calibrated_sensor_token'])
    cam2ego, ego2global = pose_matrix(calibration), pose_matrix(tables.get('ego_pose', record['ego_pose_token']))
    return dict(
        img_path=_image_path(record),
        cam2img=calibration['camera_intrinsic'],
        cam2ego=cam2ego.tolist(),
        sample_data_token=token,
        timestamp=record['timestamp'] / 1e6,
        lidar2cam=(np.linalg.inv(ego2global @ cam2ego) @ lidar2global).tolist(),
        ego2global=ego2global.tolist(),
        height=record['height'],
        width=record['width'])


def _update_entry(tables: NuScenesTables, scene: dict, frame_idx: int, entry: dict, where: str) -> None:
    sample = tables.get('sample', entry['token'])
    entry.update(_links(scene, frame_idx, sample))
    required(entry, 'timestamp', where)
    for name, image in required(entry, 'images', where).items():
        if name not in sample['data']:
            raise InputError(f'{where}camera {name} is not in the tables')
        record = tables.get('sample_data', sample['data'][name])
        pose = pose_matrix(tables.get('ego_pose', record['ego_pose_token']))
        image.update(ego2global=pose.tolist(), timestamp=record['timestamp'] / 1e6,
                     height=record['height'], width=record['width'])
    if entry.get('instances'):
        annotations = _Annotations(tables, sample)
        lidar2ego = required(required(entry, 'lidar_points', where), 'lidar2ego', f'{where}lidar_points: ')
        lidar2global = as_pose(required(entry, 'ego2global', where), f'{where}ego2global') @ as_pose(
            lidar2ego, f'{where}lidar_points.lidar2ego')
        boxes = annotations.boxes(lidar2global)
        for i, instance in enumerate(entry['instances']):
            box = np.array(required(instance, 'bbox_3d', f'{where}instance {i}: ')[:6])
            difference = np.abs(boxes[:, :6] - box).max(axis=1, initial=0)
            j = int(difference.argmin()) if len(difference) else -1
            if j < 0 or not difference[j] <= 0.05:
                raise InputError(f'{where}no annotation of the tables lies within 5 cm of instance {i}')
            instance.update(instance_token=annotations.records[j]['instance_token'],
                            attr_name=annotations.attributes[j])
