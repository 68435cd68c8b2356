"""Key frames of an info file as camera images with 3D boxes."""
import logging
import os.path as osp
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isinf
from numbers import Real
from types import MappingProxyType
from typing import Optional, Union

import numpy as np
from mmdet.visualization import get_palette
from mmdet3d.datasets import Det3DDataset
from mmdet3d.structures import LiDARInstance3DBoxes
from mmengine.logging import print_log

from georope.errors import InputError
from georope.messages import some
from georope.registry import DATASETS

from .calibration import as_intrinsics, as_pose, check_motion
from .info_file import CREATE_COMMAND, camera_order, in_scene_order, load_together
from .samplers import StreamIndex, draws_of
from .whole_frames import POLICIES, all_cameras, find_gaps, gaps_in_words


@DATASETS.register_module()
class CameraDataset(Det3DDataset):
    """Key frames of an mmdet3d v2 info file in order of (scene, time), for camera models; any classes.

    Scenes are ordered by their first timestamp, whatever the order in the file. LiDAR files are never opened and
    ``lidar_points`` may be missing: the "LiDAR frame" is then the ego frame. Cameras: any number, the same in all
    frames (see ``incomplete``), in the order of :data:`georope.datasets.info_file.CAMERAS`, others after them as they
    first come. No frame is ever replaced by another one; a fault in a frame is an error that names it.

    What a frame holds: :class:`georope.datasets.frame.CameraFrame`.

    Objects in training: objects of other classes (the file's label -1, or a class that is not in
    ``metainfo['classes']``) are left out of both the 3D and the 2D labels. ``use_valid_flag`` applies to the 3D labels
    only: the file has no such flag for the 2D labels.

    Args:
        ann_file: Info file, relative to ``data_root`` or absolute, or a list of them (train and val for a model that
            goes to the test server); they must have the same labels and no frame in common.
        data_root: Data root.
        pipeline: Transforms.
        metainfo: ``dict(classes=(...))`` chooses classes and their order; default: those of the file that have a label,
            in the order of the labels.
        data_prefix: {camera or 'img': folder of its images}, relative to ``data_root``; default
            ``samples/{camera}`` for bare names, and ``data_root`` for paths.
        use_valid_flag: Leave out objects without a single LiDAR or radar point (``bbox_3d_isvalid``), as the devkit
            does in evaluation. With False every annotated object stays, e.g. for unbroken tracks; mmdet3d's own dataset
            would still leave out those without LiDAR points.
        filter_empty_gt: Leave out training frames without any object, before the pipeline (a transform may still empty
            one). Off: a stream needs its empty frames.
        skip_tokens: Sample tokens of frames to leave out, e.g. with a broken image. A stream starts anew after each.
        cameras: Names of the cameras to use; None for all of the file.
        incomplete: What becomes of a frame that lacks a camera which others have, or whose image is missing or broken.
            ``'error'``: an error that counts them; images are not looked at before they are read. The others look at
            both ends of every image file at the start, and say in the log what they found. ``'skip'``: left out, as
            with ``skip_tokens``; in training only, since a test must have all frames. ``'mask'``: the camera is there
            as padding, in training and tests: a black image whose tokens no query sees, listed in ``missing_cameras``;
            all else is as if the rig did not have it. A frame without any camera is black and unmasked.
        test_mode: No annotation is read.
        kwargs: ``indices``, ``lazy_init``, ``serialize_data``, ``max_refetch`` of mmengine's BaseDataset.

    Raises:
        InputError: The file is not v2, a class or a token of ``skip_tokens`` is not in it, no object in it is valid, or
            a time, label, box or calibration in it cannot be one.
    """

    METAINFO = dict(classes=())

    def __init__(self,
                 ann_file: Union[str, Sequence[str]],
                 data_root: Optional[str] = None,
                 pipeline: Sequence[Union[dict, Callable]] = (),
                 metainfo: Optional[dict] = None,
                 data_prefix: Optional[dict] = None,
                 use_valid_flag: bool = True,
                 filter_empty_gt: bool = False,
                 skip_tokens: Sequence[str] = (),
                 cameras: Optional[Sequence[str]] = None,
                 incomplete: str = 'error',
                 test_mode: bool = False,
                 **kwargs) -> None:
        self.use_valid_flag = use_valid_flag
        self.skip_tokens = set(skip_tokens)
        self.cameras, self.incomplete = None if cameras is None else list(cameras), incomplete
        if isinstance(kwargs.get('indices'), float):
            raise InputError(f'indices={kwargs["indices"]} of the dataset with {ann_file} is a share; give a number of '
                             'frames, e.g. indices=100 for the first 100 (whole scenes follow each other), or a list.')
        if incomplete not in POLICIES:
            raise InputError(f'incomplete={incomplete!r}, choose one of {", ".join(POLICIES)}.')
        if incomplete == 'skip' and test_mode:
            raise InputError("incomplete='skip' leaves out frames, and a test needs all of them: use 'mask' with "
                             'test_mode=True.')
        if metainfo and 'classes' in metainfo:
            if isinstance(metainfo['classes'], str):
                raise InputError(f'metainfo.classes={metainfo["classes"]!r} is one text; a list of names is needed.')
            self.METAINFO = dict(self.METAINFO, classes=tuple(metainfo['classes']))  # where mmdet3d looks them up
        self.ann_files = [ann_file] if isinstance(ann_file, str) else list(ann_file)
        if not self.ann_files:
            raise InputError('ann_file is an empty list: name at least one info file.')
        super().__init__(
            data_root=osp.expanduser(data_root) if data_root else data_root,
            ann_file=ann_file if isinstance(ann_file, str) else '',
            metainfo=metainfo,
            data_prefix=dict(data_prefix or {}),
            pipeline=list(pipeline),
            modality=dict(use_camera=True, use_lidar=False),
            box_type_3d='LiDAR',
            filter_empty_gt=filter_empty_gt,
            test_mode=test_mode,
            load_eval_anns=False,
            **kwargs)

    def _join_prefix(self) -> None:
        """``ann_files`` are the complete paths, ``ann_file`` names them all."""
        super()._join_prefix()
        self.ann_files = [self.ann_file] if self.ann_file else [
            osp.join(self.data_root or '', file) for file in self.ann_files]
        self.ann_file = ', '.join(self.ann_files)

    def load_data_list(self) -> list[dict]:
        """Read, order, check and parse the info file."""
        infos, self._files = load_together(self.ann_files)
        for key, value in infos['metainfo'].items():
            self._metainfo.setdefault(key, value)
        self._set_classes(infos['metainfo'].get('categories', {}))
        for entry in infos['data_list']:
            time = _required(entry, 'timestamp', self._where(entry))
            if not (isinstance(time, Real) and isfinite(time)):
                raise InputError(f'{self._where(entry)}timestamp is {time!r}, not a number of seconds.')
        entries = in_scene_order(infos['data_list'])
        tokens = [entry['token'] for entry in entries]
        if len(set(tokens)) < len(tokens):
            double = next(token for token in tokens if tokens.count(token) > 1)
            raise InputError(f'{self.ann_file}: sample {double} occurs more than once.')
        if self.skip_tokens - set(tokens):
            raise InputError(f'{self.ann_file} has none of the skip_tokens {sorted(self.skip_tokens - set(tokens))}.')
        if not all('scene_token' in entry for entry in entries):
            warnings.warn(
                f'{self.ann_file} has no scene tokens: frames are ordered by time and each counts as a scene of its '
                f'own. Add them with `{CREATE_COMMAND} --update {self.ann_file}`.', stacklevel=2)
        wanted = [entry for entry in entries if entry['token'] not in self.skip_tokens]
        gaps = self._gaps(wanted)
        left_out_tokens = self.skip_tokens | (gaps.keys() if self.incomplete == 'skip' else set())
        seen = {name: entry['images'][name] for entry in reversed(wanted) for name in entry['images']}
        starts, positions, left_out = {}, Counter(), Counter()
        frames = []
        for entry in entries:
            scene = entry.get('scene_token', '')
            starts.setdefault(scene, entry['timestamp'])
            positions[scene] += 1
            if entry['token'] in left_out_tokens:
                left_out[scene] += 1
                continue
            seen.update(entry['images'])
            frame = self.parse_data_info(entry, gaps.get(entry['token'], {}), seen)
            frame['timestamp'] -= starts[scene]
            for image in frame['images'].values():
                if image['timestamp'] is not None:
                    image['timestamp'] -= starts[scene]
            frame.setdefault('frame_idx', positions[scene] - 1)
            frame['left_out'] = left_out[scene]  # frames of its scene, before it
            frames.append(frame)
        if not self.test_mode and self.use_valid_flag and not any(self.num_ins_per_cat):
            objects = sum(self._label(item, 'bbox_label_3d', f'{self.ann_file}: ') >= 0
                          for entry in entries for item in entry.get('instances', ()))
            if objects:
                raise InputError(f'{self.ann_file}: none of its {objects} objects has a LiDAR or radar point. Set '
                                 'use_valid_flag=False if there is no such sensor.')
        check_motion(self.ann_file, frames)
        return frames

    def _where(self, entry: dict) -> str:
        """The beginning of messages about an entry."""
        return f'{self._files[entry["token"]]}: sample {entry["token"]}: '

    def _gaps(self, entries: list[dict]) -> dict[str, dict[str, str]]:
        """Set ``cameras`` and find those that frames lack: an error or a warning, depending on ``incomplete``."""
        for entry in entries:
            images = _required(entry, 'images', self._where(entry))
            if not images and self.incomplete == 'error':
                raise InputError(f'{self._where(entry)[:-2]} has no cameras.')
        known = all_cameras(entries)
        unknown = [name for name in self.cameras or () if name not in known]
        if unknown:
            raise InputError(f'cameras: {self.ann_file} has no {some(unknown)}, but {some(camera_order(known), 10)}.')
        self.cameras = camera_order(self.cameras or known)
        gaps = find_gaps(entries, self.cameras, self._image_path, files=self.incomplete != 'error')
        if not gaps:
            return gaps
        told = gaps_in_words(gaps, len(entries))
        if self.incomplete == 'error':
            first = next(entry for entry in entries if entry['token'] in gaps)
            raise InputError(
                f'{self._where(first)[:-2]} has the cameras {list(first["images"])}, others have '
                f"{self.cameras}; all frames need the same ones. {told}. incomplete='skip' of the dataset leaves such "
                "frames out of a training, incomplete='mask' hides the missing cameras, in tests too.")
        if self.incomplete == 'skip' and len(gaps) == len(entries):
            raise InputError(f"{self.ann_file}: {told}: incomplete='skip' leaves no frame.")
        blind = sum(len(found) == len(self.cameras) for found in gaps.values())
        done = 'left out, streams start anew after each' if self.incomplete == 'skip' else \
            'missing cameras are hidden' + (f', {blind} frames have none and are black' if blind else '')
        print_log(f'{self.ann_file}: {told}: {done}', 'current', logging.WARNING)
        return gaps

    def parse_data_info(self, info: dict, gaps: Mapping[str, str] = MappingProxyType({}),
                        stand_ins: Mapping[str, dict] = MappingProxyType({})) -> dict:
        """One entry of the info file as a frame; matrices are checked.

        Args:
            info: the entry.
            gaps: its missing cameras, and why.
            stand_ins: {camera: record of another frame} for those without a record.
        """
        where = self._where(info)
        frame = dict(token=info['token'], scene_token=info.get('scene_token', ''), timestamp=float(info['timestamp']))
        frame.update({key: info[key] for key in ('frame_idx', 'prev', 'next', 'scene_name') if key in info})
        frame['ego2global'] = as_pose(_required(info, 'ego2global', where), where + 'ego2global')
        lidar2ego = info.get('lidar_points', {}).get('lidar2ego', np.eye(4))
        frame['lidar2ego'] = as_pose(lidar2ego, where + 'lidar_points.lidar2ego')
        frame['lidar2global'] = frame['ego2global'] @ frame['lidar2ego']

        frame['cam_names'] = list(self.cameras)
        frame['images'] = {}
        matrices = dict(cam2img=[], lidar2cam=[])
        for name in frame['cam_names']:
            image = info['images'].get(name)
            of = f'{where}camera {name}: '
            if image is None:  # a calibration that cannot count: the camera is hidden
                image = {key: stand_ins[name].get(key) for key in ('cam2img', 'lidar2cam', 'height', 'width')}
                image['img_path'] = ''
            poses = {key: as_pose(image[key], of + key) if key in image else None for key in ('cam2ego', 'ego2global')}
            matrices['cam2img'].append(as_intrinsics(_required(image, 'cam2img', of), of + 'cam2img'))
            matrices['lidar2cam'].append(as_pose(_required(image, 'lidar2cam', of), of + 'lidar2cam'))
            frame['images'][name] = dict(
                img_path=self._image_path(name, _required(image, 'img_path', of)),
                **{key: image.get(key) for key in ('sample_data_token', 'timestamp', 'height', 'width')}, **poses)
        frame.update({key: np.stack(value) for key, value in matrices.items()})
        frame['lidar2img'] = frame['cam2img'] @ frame['lidar2cam']
        frame['img_path'] = [image['img_path'] for image in frame['images'].values()]
        if self.incomplete == 'mask':
            frame['missing_cameras'] = [name for name in self.cameras if name in gaps]
        if not self.test_mode:
            frame['ann_info'] = self.parse_ann_info(info, gaps)
            for label in frame['ann_info']['gt_labels_3d']:
                self.num_ins_per_cat[label] += 1
        return frame

    def parse_ann_info(self, info: dict, gaps: Mapping[str, str] = MappingProxyType({})) -> dict:
        """Annotations of one entry as arrays; the origin of boxes (n, 9) is still their centre. A missing camera
        has no 2D labels."""
        where = self._where(info)
        instances = [item for item in _required(info, 'instances', where)
                     if self._label(item, 'bbox_label_3d', where) >= 0]
        if self.use_valid_flag:
            if not all('bbox_3d_isvalid' in item for item in instances):
                raise InputError(where + 'instances without bbox_3d_isvalid; set use_valid_flag=False.')
            instances = [item for item in instances if item['bbox_3d_isvalid']]
        ann_info = dict(
            gt_bboxes_3d=np.array([_box(item, where) for item in instances], dtype=np.float32).reshape(-1, 9),
            gt_labels_3d=np.array([self._label(item, 'bbox_label_3d', where) for item in instances], dtype=np.int64))
        if 'cam_instances' in info:
            per_camera = [[item for item in info['cam_instances'].get(name, ()) if name not in gaps and
                           self._label(item, 'bbox_label', where) >= 0] for name in self.cameras]
            for key, name, shape in (('gt_bboxes', 'bbox', (-1, 4)), ('centers_2d', 'center_2d', (-1, 2)),
                                     ('depths', 'depth', (-1, ))):
                ann_info[key] = [np.array([item[name] for item in items], dtype=np.float32).reshape(shape)
                                 for items in per_camera]
                for camera, values in zip(self.cameras, ann_info[key]):
                    if not np.isfinite(values).all():
                        raise InputError(f'{where}camera {camera}: cam_instances.{name} is not finite throughout.')
            ann_info['gt_bboxes_labels'] = [
                np.array([self._label(item, 'bbox_label', where) for item in items], dtype=np.int64)
                for items in per_camera
            ]
        return ann_info

    def filter_data(self) -> list[dict]:
        """Leave out training frames without objects if ``filter_empty_gt``."""
        if self.test_mode or not self.filter_empty_gt:
            return self.data_list
        return [frame for frame in self.data_list if len(frame['ann_info']['gt_labels_3d'])]

    def scenes(self) -> list[list[int]]:
        """Indices of the frames of each scene, in order. A frame without scene token is a scene of its own."""
        scenes, last = [], ''
        for index in range(len(self)):
            token = super().get_data_info(index)['scene_token']
            if token and token == last:
                scenes[-1].append(index)
            else:
                scenes.append([index])
            last = token
        return scenes

    def get_data_info(self, idx: int) -> dict:
        """The frame at ``idx``, see the class."""
        frame = super().get_data_info(int(idx))
        index, scene, left_out = frame['sample_idx'], frame['scene_token'], frame.pop('left_out')
        starts = isinstance(idx, StreamIndex) and idx.starts
        former = super().get_data_info(index - 1) if index > 0 and scene and not starts else None
        frame['prev_exists'] = former is not None and (former['scene_token'], former['left_out']) == (scene, left_out)
        if frame['prev_exists']:
            frame['prev_lidar2global'] = former['lidar2global']
        if 'ann_info' in frame:
            boxes = frame['ann_info']['gt_bboxes_3d']
            frame['ann_info']['gt_bboxes_3d'] = LiDARInstance3DBoxes(boxes, box_dim=9, origin=(0.5, 0.5, 0.5))
        return frame

    def prepare_data(self, idx: int) -> dict:
        """The frame at ``idx`` through the pipeline.

        Raises:
            InputError: A transform returned None; another frame never replaces it.
        """
        frame = self.get_data_info(idx)
        token = frame['token']
        frame.update(box_type_3d=self.box_type_3d, box_mode_3d=self.box_mode_3d)
        with draws_of(idx):
            data = self.pipeline(frame)
        if data is None:
            raise InputError(f'{self.ann_file}: a transform returned None for sample {token}; frames are not replaced.')
        return data

    def _label(self, item: dict, key: str, where: str) -> int:
        label = _required(item, key, where)
        if label not in self.label_mapping:
            raise InputError(f'{where}{key} is {label}, none of the labels of metainfo.categories.')
        return self.label_mapping[label]

    def _set_classes(self, categories: dict) -> None:
        """Map the file's labels, given by ``categories`` {name: label}, to indices in ``classes``; others to -1."""
        if not self._metainfo['classes']:
            known = [name for name, label in categories.items() if label >= 0]
            self._metainfo['classes'] = tuple(sorted(known, key=categories.get))
        classes = self._metainfo['classes']
        self._metainfo.setdefault('palette', get_palette('random', len(classes)))
        self.num_ins_per_cat = [0] * len(classes)
        missing = [name for name in classes if categories.get(name, -1) < 0]
        if missing:
            raise InputError(f'{self.ann_file} has no labels for the classes {missing}; it has '
                             f'{[name for name, label in categories.items() if label >= 0]}.')
        self.label_mapping = {label: -1 for label in categories.values()}
        self.label_mapping.update({categories[name]: i for i, name in enumerate(classes)})
        self.label_mapping[-1] = -1

    def _image_path(self, camera: str, path: str) -> str:
        folder = self.data_prefix.get(camera, self.data_prefix.get('img'))
        if folder is None:  # a bare name is mmdet3d's
            folder = self.data_root or ''
            if not osp.dirname(path):
                folder = osp.join(folder, 'samples', camera)
        return osp.join(folder, path)


def _box(item: dict, where: str) -> list[float]:
    """Centre, length, width, height, yaw, velocity in x and y; NaN where the velocity is unknown."""
    box, velocity = _required(item, 'bbox_3d', where)[:7], item.get('velocity', [float('nan')] * 2)
    if len(box) < 7 or not all(map(isfinite, box)) or min(box[3:6]) <= 0:
        raise InputError(f'{where}bbox_3d is {list(box)}, not 7 finite numbers; length, width, height must exceed 0.')
    if len(velocity) != 2 or any(map(isinf, velocity)):
        raise InputError(f'{where}velocity is {list(velocity)}, not 2 finite numbers or NaN.')
    return [*box, *velocity]


def _required(record: dict, key: str, where: str):
    if key not in record:
        raise InputError(f'{where}{key} is missing.' + (' A file without annotations needs test_mode=True.'
                                                        if key == 'instances' else ''))
    return record[key]
