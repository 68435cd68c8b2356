"""The camera dataset with the ten classes of nuScenes' detection task."""
from typing import Optional

from mmdet3d.datasets import NuScenesDataset

from georope.errors import InputError
from georope.registry import DATASETS

from .camera_dataset import CameraDataset


@DATASETS.register_module()
class NuScenesCameraDataset(CameraDataset):
    """:class:`CameraDataset` for nuScenes: its ten classes in mmdet3d's order by default; others are refused."""

    METAINFO = dict(classes=NuScenesDataset.METAINFO['classes'], palette=NuScenesDataset.METAINFO['palette'])

    def __init__(self, *args, metainfo: Optional[dict] = None, **kwargs) -> None:
        if metainfo and 'classes' in metainfo:
            known = dict(zip(self.METAINFO['classes'], self.METAINFO['palette']))
            unknown = [name for name in metainfo['classes'] if name not in known]
            if unknown:
                raise InputError(f'metainfo.classes: {unknown} are not classes of nuScenes; those are {list(known)}. '
                                 'For names of your own use georope.CameraDataset and georope.CameraMetric.')
            metainfo = {'palette': [known[name] for name in metainfo['classes']], **metainfo}
        super().__init__(*args, metainfo=metainfo, **kwargs)
