"""Drives through one scene and writes what its sensors see: images, LiDAR files and the scene's table rows."""
from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Callable

import cv2
import numpy as np

from .lidar import scan
from .placement import ToyObject
from .render import Camera, Lens, Light, Picture, render
from .rig import Sensor
from .tables import Tables, chain, quaternion, visibility_token, yaw_quaternion
from .world import Scene

JPEG_QUALITY = 92


class Recorder:
    """Records one scene below ``root``; rows are added to ``tables``."""

    def __init__(self, scene: Scene, tables: Tables, root: Path, image_size: tuple[int, int], seed: int):
        self.scene, self.tables, self.root, self.image_size = scene, tables, root, image_size
        number = int(scene.name.split('-')[1])
        self._light = Light.draw(np.random.default_rng([seed, number, 1]))
        self._lenses = {s.channel: Lens(s.intrinsic, image_size) for s in scene.rig if s.intrinsic is not None}
        self._logfile = f'n{100 + number % 7:03d}-2018-08-{1 + number % 28:02d}-toy-{scene.name}'
        self._data_rows: dict[str, list[dict]] = defaultdict(list)       # channel -> sample_data rows in time order
        self._annotations: dict[str, list[dict]] = defaultdict(list)     # object key -> sample_annotation rows

    def record(self, on_frame: Callable[[], None] = lambda: None):
        """Write all files of the scene and add all its rows; ``on_frame`` is called after every key frame."""
        scene, add, token = self.scene, self.tables.add, self.tables.token
        log = add('log', scene.name, logfile=self._logfile, vehicle=self._logfile[:4],
                  date_captured=self._logfile[5:15], location='boston-seaport')
        self._calibrated = {s.channel: self.tables.add_sensor(scene.name, s) for s in scene.rig}
        stamps = scene.timestamps
        samples = [dict(token=token('sample', scene.name, i), timestamp=t, prev='', next='',
                        scene_token=token('scene', scene.name)) for i, t in enumerate(stamps)]
        for frame, sample in enumerate(samples):
            if frame:
                self._sweeps(frame, samples)
            self._key_frame(frame, sample)
            on_frame()
        chain(samples)
        self.tables.rows['sample'] += samples
        for rows in (*self._data_rows.values(), *self._annotations.values()):
            chain(rows)
        for rows in self._data_rows.values():
            self.tables.rows['sample_data'] += rows
        for obj in scene.objects:
            self._add_instance(obj)
        add('scene', scene.name, log_token=log, nbr_samples=len(samples), first_sample_token=samples[0]['token'],
            last_sample_token=samples[-1]['token'], name=scene.name, description='synthetic street, georope toy world')

    def _key_frame(self, frame: int, sample: dict):
        scene = self.scene
        objects = scene.present(frame, sample['timestamp'])
        lidar, *cameras = scene.rig
        points = self._scan(lidar, sample['timestamp'], objects, self._add_data(lidar, sample['timestamp'], sample))
        seen, alone = np.zeros(len(objects), int), np.zeros(len(objects), int)
        for camera in cameras:
            timestamp = sample['timestamp'] + camera.delay
            path = self._add_data(camera, timestamp, sample)
            picture = self.photograph(camera, timestamp, objects)
            _, encoded = cv2.imencode('.jpg', picture.image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
            path.write_bytes(encoded.tobytes())
            seen += np.bincount(picture.owner[picture.owner >= 0], minlength=len(objects))[:len(objects)]
            alone += picture.alone[:len(objects)]
        for i, obj in enumerate(objects):
            self._annotate(obj, sample, int(points[i]), visibility_token(seen[i], alone[i]))

    def photograph(self, sensor: Sensor, timestamp: int, objects: list[ToyObject]) -> Picture:
        """What a camera sees at ``timestamp`` (microseconds): ego pose and objects are those of that moment."""
        rotation, translation = self.scene.ego_pose(timestamp)
        camera = Camera(self._lenses[sensor.channel], rotation @ sensor.rotation,
                        rotation @ sensor.translation + translation)
        time = self.scene.time(timestamp)
        meshes = [o.posed_mesh(time) for o in objects]
        meshes += [b.mesh for b in self.scene.blocks]
        return render(camera, meshes, self.scene.ground, self._light)

    def _scan(self, lidar: Sensor, timestamp: int, objects: list[ToyObject], path: Path) -> np.ndarray:
        """Write a LiDAR file; points on each object."""
        rotation, translation = self.scene.ego_pose(timestamp)
        time = self.scene.time(timestamp)
        boxes = [[*o.centre(time), *o.size, o.motion.pose(time)[2]] for o in objects]
        boxes += [b.box for b in self.scene.blocks]
        points, counts = scan(rotation @ lidar.rotation, rotation @ lidar.translation + translation,
                              np.array(boxes).reshape(-1, 7))
        path.write_bytes(points.tobytes())
        return counts[:len(objects)]

    def _sweeps(self, frame: int, samples: list[dict]):
        """One intermediate record per sensor. LiDAR sweeps have files; those of cameras, as in nuScenes' key frame
        download, have not: neither the devkit's loader nor mmdet3d's converter opens them."""
        before, after = samples[frame - 1]['timestamp'], samples[frame]['timestamp']
        middle = (before + after) // 2
        for sensor in self.scene.rig:
            path = self._add_data(sensor, middle + sensor.delay, samples[frame], key_frame=False)
            if sensor.intrinsic is None:
                self._scan(sensor, middle, self.scene.present(frame, middle), path)

    def _add_data(self, sensor: Sensor, timestamp: int, sample: dict, key_frame: bool = True) -> Path:
        """Rows sample_data and ego_pose; the path of the file to write."""
        scene, lidar = self.scene, sensor.intrinsic is None
        key = (scene.name, sensor.channel, timestamp)
        rotation, translation = scene.ego_pose(timestamp)
        self.tables.add('ego_pose', *key, timestamp=timestamp, rotation=quaternion(rotation),
                        translation=(translation + scene.origin).tolist())
        folder, ending = 'samples' if key_frame else 'sweeps', 'pcd.bin' if lidar else 'jpg'
        name = f'{folder}/{sensor.channel}/{self._logfile}__{sensor.channel}__{timestamp}.{ending}'
        height, width = (0, 0) if lidar else self.image_size
        self._data_rows[sensor.channel].append(dict(
            token=self.tables.token('sample_data', *key), sample_token=sample['token'],
            ego_pose_token=self.tables.token('ego_pose', *key),
            calibrated_sensor_token=self._calibrated[sensor.channel], timestamp=timestamp,
            fileformat='pcd' if lidar else 'jpg', is_key_frame=key_frame, height=height, width=width, filename=name,
            prev='', next=''))
        return self.root / name

    def _annotate(self, obj: ToyObject, sample: dict, points: int, visibility: str):
        time = self.scene.time(sample['timestamp'])
        self._annotations[obj.key].append(dict(
            token=self.tables.token('sample_annotation', self.scene.name, obj.key, sample['token']),
            sample_token=sample['token'], instance_token=self.tables.token('instance', self.scene.name, obj.key),
            visibility_token=visibility,
            attribute_tokens=[self.tables.token('attribute', obj.attribute)] if obj.attribute else [],
            translation=(obj.centre(time) + self.scene.origin).tolist(), size=list(obj.size),
            rotation=yaw_quaternion(obj.motion.pose(time)[2]), prev='', next='', num_lidar_pts=points,
            num_radar_pts=0))

    def _add_instance(self, obj: ToyObject):
        rows = self._annotations.get(obj.key)
        if not rows:
            return
        self.tables.rows['sample_annotation'] += rows
        self.tables.add('instance', self.scene.name, obj.key,
                        category_token=self.tables.token('category', obj.spec.category), nbr_annotations=len(rows),
                        first_annotation_token=rows[0]['token'], last_annotation_token=rows[-1]['token'])
