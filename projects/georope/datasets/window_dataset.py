"""Sliding windows over scenes, for training on short histories."""
import numpy as np
import torch

from georope.registry import DATASETS

from .camera_dataset import CameraDataset
from .nuscenes_dataset import NuScenesCameraDataset
from .samplers import draws_of


@DATASETS.register_module()
class CameraWindowDataset(CameraDataset):
    """For each key frame of a training, a window of ``queue_length`` frames that ends with it.

    The earlier ones are drawn from the ``queue_length - 1 + random_length`` frames before it and stay in order of time;
    each frame has its own augmentation. This is the sampling of the StreamPETR repository, except at starts of scenes:
    there, frames that do not exist become repeats of the scene's first frame (after a frame left out by
    ``skip_tokens``: of the one after it), never a frame of another scene. ``prev_exists`` is False for the first frame
    of a window and for repeats of it, else True. Tests get single frames as from the base class.

    A packed window is ``inputs``: ``img`` (T, N, 3, h, w), and ``data_samples``: that of the last frame, with
    ``frames``, a list of the T Det3DDataSamples, which ``DataSample.to`` does not move.

    Args:
        queue_length: Frames of a window, T.
        random_length: How many of the drawn-from frames are left out each time.
        kwargs: Those of the base class.
    """

    def __init__(self, *args, queue_length: int, random_length: int = 0, **kwargs) -> None:
        if queue_length < 1 or random_length < 0:
            raise ValueError(f'queue_length={queue_length} must be 1 or more, random_length={random_length} 0 or more.')
        self.queue_length, self.random_length = queue_length, random_length
        super().__init__(*args, **kwargs)

    def window(self, index: int) -> list[int]:
        """Indices of the frames of a window that ends at ``index``, drawn with numpy's global generator."""
        span = self.queue_length - 1 + self.random_length
        first = index
        while index - first < span and self.get_data_info(first)['prev_exists']:
            first -= 1
        drawn = np.random.choice(span, self.queue_length - 1, replace=False)
        return [*np.maximum(np.sort(drawn) + index - span, first).tolist(), index]

    def prepare_data(self, idx: int) -> dict:
        if self.test_mode:
            return super().prepare_data(idx)
        index = range(len(self))[idx]
        with draws_of(idx):
            indices = self.window(index)
            frames = [super(CameraWindowDataset, self).prepare_data(i) for i in indices]
        samples = [frame['data_samples'] for frame in frames]
        for i, sample in zip(indices, samples):
            sample.set_metainfo(dict(prev_exists=i != indices[0]))
        packed = dict(inputs=dict(img=torch.stack([frame['inputs']['img'] for frame in frames])),
                      data_samples=samples[-1].clone())
        packed['data_samples'].frames = samples
        return packed


@DATASETS.register_module()
class NuScenesWindowDataset(CameraWindowDataset, NuScenesCameraDataset):
    """:class:`CameraWindowDataset` with the classes of :class:`NuScenesCameraDataset`."""
