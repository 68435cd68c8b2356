"""A detector as one graph of static shapes and real float32 arithmetic, for ONNX: geometry is an input, and of
StreamPETR the memory goes in and out. ``tools/export.py`` writes and checks it; docs/deployment.md tells what is next.
"""
from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmdet3d.structures import Det3DDataSample, LiDARInstance3DBoxes
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from georope.models import PETRHead, box_code
from georope.models.cameras import Cameras, as_strides, padded_tokens
from georope.models.memory import MemoryEntries
from georope.rope import Rays

OPSET = 18
IMAGE_INPUTS = ('images', 'lidar2img')
MOTION_INPUTS = ('motion', 'elapsed', 'continued')
MEMORY = ('embedding', 'points', 'velocity', 'poses', 'ages', 'filled')


class ExportedDetector(nn.Module):
    """``forward`` takes and returns tensors alone, batch 1, and changes nothing in the model.

    Inputs: ``images`` (N, 3, height, width) float32, 0 to 255, BGR, of the size that the test pipeline makes of them;
    ``lidar2img`` (N, 4, 4) float32, LiDAR point -> (u d, v d, d, 1) in pixels of these images. For a model with a
    memory of M entries also

    - ``motion`` (4, 4): from the LiDAR frame of the previous frame to this one, ``inv(lidar2global) @ previous
      lidar2global``, computed in float64,
    - ``elapsed`` (1,): seconds since then; ``continued`` (1,): 0 in the first frame of a scene, else 1,
    - ``memory_embedding`` (1, M, C), ``memory_points`` (1, M, 3), ``memory_velocity`` (1, M, 2), ``memory_poses``
      (1, M, 4, 4), ``memory_ages`` (1, M), ``memory_filled`` (1, M): what the call before returned under the names
      ``new_...``; in the first frame of a scene anything, zeros say.

    Outputs: ``logits`` (queries, classes), ``codes`` (queries, 10), see ``box_code``, of the last decoder layer; and
    the memory. Its points, poses and ages are those of the current frame, so that float32 serves wherever the vehicle
    is.

    Args:
        model: a detector; it is copied.
        image_size: (height, width) of the images.
        num_cameras: N.

    Raises:
        ValueError: the head is none that can be exported.
    """

    def __init__(self, model: nn.Module, image_size: tuple[int, int], num_cameras: int) -> None:
        super().__init__()
        if not isinstance(getattr(model, 'pts_bbox_head', None), PETRHead):
            raise ValueError(f'{type(getattr(model, "pts_bbox_head", None)).__name__} cannot be exported: only '
                             'georope.PETRHead and heads derived from it')
        self.model = copy.deepcopy(model).eval()
        self.image_size, self.num_cameras = image_size, num_cameras
        preprocessor, head = self.model.data_preprocessor, self.model.pts_bbox_head
        self.remembers = hasattr(head, 'memory')
        divisor = preprocessor.pad_size_divisor
        self.padded = tuple(-(-size // divisor) * divisor for size in image_size)
        self.sizes = [tuple(-(-size // stride) for size in self.padded) for stride in as_strides(head.stride)]
        # What the head reads of numpy matrices in evaluation comes from inputs here.
        self.metas = [dict(img_shape=[image_size] * num_cameras, ego_pose=np.eye(4), timestamp=0.0, scene_token='',
                           prev_exists=True)]

    @property
    def input_names(self) -> list[str]:
        memory = [*MOTION_INPUTS, *(f'memory_{name}' for name in MEMORY)] if self.remembers else []
        return [*IMAGE_INPUTS, *memory]

    @property
    def output_names(self) -> list[str]:
        return ['logits', 'codes', *(f'new_{name}' for name in MEMORY if self.remembers)]

    def example(self) -> tuple[Tensor, ...]:
        """Inputs of the right shapes: the first frame of a scene."""
        images = torch.zeros(self.num_cameras, 3, *self.image_size)
        lidar2img = torch.tensor([[500.0, 200, 0, 0], [0, 100, -500, 100], [0, 1, 0, 0.5], [0, 0, 0, 1]])
        inputs = (images, lidar2img.repeat(self.num_cameras, 1, 1))
        if self.remembers:
            inputs += torch.eye(4), torch.zeros(1), torch.zeros(1), *self.no_memory()
        return inputs

    def no_memory(self) -> tuple[Tensor, ...]:
        """Zeros in the shapes of the memory."""
        head = self.model.pts_bbox_head
        length, dims = head.memory.length, head.query_embedding[-1].out_features
        return tuple(torch.zeros(1, length, *shape) for shape in ((dims, ), (3, ), (2, ), (4, 4), (), ()))

    def forward(self, images: Tensor, lidar2img: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
        head = self.model.pts_bbox_head
        features = self.model.extract_feat(dict(imgs=self._normalise(images)[None]))
        cameras = self._cameras(lidar2img)
        head._read_cameras = lambda *_: cameras
        tokens = self.model._choose(features, self.metas) if self.remembers else None
        if not self.remembers:
            results = head(features, self.metas)
            return results['logits'][-1, 0], results['codes'][-1, 0]
        start = head._to_metres(head.pseudo_reference_points.weight)
        head.memory = _TensorMemory(head.memory.length, start, *memory)
        results = head(features, self.metas, tokens=tokens)
        new = head.memory.new
        head.memory = _TensorMemory(head.memory.length, start)
        return results['logits'][-1, 0], results['codes'][-1, 0], *new

    def _normalise(self, images: Tensor) -> Tensor:
        preprocessor = self.model.data_preprocessor
        if preprocessor._channel_conversion:
            images = torch.cat((images[:, 2:3], images[:, 1:2], images[:, 0:1]), dim=1)
        if preprocessor._enable_normalize:
            images = (images - preprocessor.mean) / preprocessor.std
        height, width = (padded - size for padded, size in zip(self.padded, self.image_size))
        return nn.functional.pad(images, (0, width, 0, height), value=float(preprocessor.pad_value))

    def _cameras(self, lidar2img: Tensor) -> Cameras:
        """Rays by the adjoint of the 3x3 part, in float32: no runtime inverts matrices, and TensorRT has no float64."""
        head = self.model.pts_bbox_head
        x, y, z = lidar2img[:, :3, :3].unbind(1)  # rows, each (N, 3)
        adjoint = torch.stack((_cross(y, z), _cross(z, x), _cross(x, y)), dim=-1)  # the inverse, times the determinant
        determinant = (x * adjoint[..., 0]).sum(-1)
        inverse = adjoint / determinant[:, None, None]
        origins = -(inverse * lidar2img[:, None, :3, 3]).sum(-1)
        img2lidar = torch.cat((inverse, origins[..., None]), dim=-1)[None]
        # Of K R with K upper triangular: fy is the length of (y x z), fx fy the determinant.
        fy = torch.linalg.vector_norm(adjoint[..., 0], dim=-1)
        focal = torch.stack((determinant / fy, fy), dim=-1)[None]
        return Cameras.concatenate([Cameras(
            Rays.from_img2lidar(img2lidar, size, stride), head._to_tokens(focal, size[0] * size[1]),
            padded_tokens(self.metas, self.num_cameras, size, stride, lidar2img.device))
            for size, stride in zip(self.sizes, as_strides(head.stride))])


@dataclass(frozen=True)
class _MaskedEntries(MemoryEntries):
    """Entries that tell by a mask which of them are empty: a graph cannot count."""

    hidden: Tensor | None = None

    @property
    def empty(self) -> Tensor:
        return self.hidden


class _TensorMemory:
    """Stands in for ``Memory``: holds what comes in, keeps what goes out."""

    def __init__(self, length: int, start: Tensor, *inputs: Tensor) -> None:
        self.length, self.start, self.inputs = length, start, inputs

    def get(self, frames, start_points: Tensor, channels: int) -> MemoryEntries:
        motion, elapsed, continued, embedding, points, velocity, poses, ages, filled = self.inputs
        rotation, shift = motion[:3, :3], motion[:3, 3]
        kept = (embedding, _turn(points, rotation) + shift, velocity, _matmul4(motion, poses), ages + elapsed, filled)
        num = len(self.start)
        rest = self.length - num
        dims, like = embedding.shape[-1], dict(device=points.device)
        first = torch.nn.functional.pad(self.start, (0, 0, 0, rest))[None]
        eye = torch.eye(4, **like).expand(num, 4, 4)
        fresh = (torch.zeros(1, self.length, dims, **like), first, torch.zeros(1, self.length, 2, **like),
                 torch.cat((eye, torch.zeros(rest, 4, 4, **like)))[None], torch.zeros(1, self.length, **like),
                 torch.cat((torch.ones(num, **like), torch.zeros(rest, **like)))[None])
        goes_on = continued > 0.5
        *self.entries, self.filled = (torch.where(goes_on.view([1] * old.dim()), old, new)
                                    for old, new in zip(kept, fresh))
        return _MaskedEntries(*self.entries, filled=(0, ), hidden=self.filled < 0.5)

    def update(self, embedding: Tensor, points: Tensor, velocity: Tensor) -> None:
        num = points.shape[1]
        poses = torch.eye(4, device=points.device).expand(1, num, 4, 4)
        ones = torch.ones(1, num, device=points.device)
        new = (embedding, points, velocity, poses, ones - 1, ones)
        self.new = tuple(torch.cat((x, old), dim=1)[:, :self.length]
                         for x, old in zip(new, (*self.entries, self.filled)))


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Written out: not every runtime has it."""
    (a1, a2, a3), (b1, b2, b3) = a.unbind(-1), b.unbind(-1)
    return torch.stack((a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1), dim=-1)


def _turn(points: Tensor, rotation: Tensor) -> Tensor:
    """An elementwise sum: in half precision or TF32 a product would move points by centimetres."""
    return (points[..., None, :] * rotation).sum(-1)


def _matmul4(matrix: Tensor, poses: Tensor) -> Tensor:
    return (matrix[:, :, None] * poses[..., None, :, :]).sum(-2)


def export_onnx(detector: ExportedDetector, path: str | Path) -> None:
    """Write the graph; weights above 2 GB go beside it.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        RuntimeError: a part of the model has no ONNX form; says which.
    """
    with torch.no_grad():
        program = torch.onnx.export(
            detector, detector.example(), dynamo=True, opset_version=OPSET, input_names=detector.input_names,
            output_names=detector.output_names, verbose=False, optimize=True)
    program.save(str(path))


def decode(logits: np.ndarray, codes: np.ndarray, max_num: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes (n, 9) as ``Detections`` has them, scores and labels of the outputs: what a host does after the graph."""
    scores = 1 / (1 + np.exp(-logits.astype(np.float64).ravel()))
    best = np.argsort(-scores, kind='stable')[:max_num]
    boxes = box_code.decode(torch.from_numpy(codes[best // logits.shape[1]])).numpy()
    return boxes, scores[best], best % logits.shape[1]


@dataclass
class Check:
    """How far a graph in onnxruntime is from the model, the most over frames and queries, and how fast both are.

    Attributes:
        logits: largest difference of a logit.
        boxes: largest distance of two centres, metres.
        codes: largest difference of another number of the codes.
        eager, graph: median seconds of a frame, of the CPU where torch has one thread.
    """

    logits: float
    boxes: float
    codes: float
    eager: float
    graph: float


def onnx_runner(path: str | Path) -> Callable[..., list[np.ndarray]]:
    """The graph in onnxruntime on the CPU, with as many threads as torch has: arrays in the order of its inputs ->
    those of its outputs."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs)))


def check(detector: ExportedDetector, model: nn.Module, frames: Sequence[dict],
          run: Callable[..., list[np.ndarray]]) -> Check:
    """Run the same frames through the model, as tests run it, and through its graph.

    Args:
        detector: what was exported.
        model: what it was made of, on the CPU; its memory is forgotten.
        frames: those of a stream, as ``made_up_frames`` gives them.
        run: the graph, see ``onnx_runner``.
    """
    memory, last = [x.numpy() for x in detector.no_memory()] if detector.remembers else [], None
    if detector.remembers:
        model.pts_bbox_head.memory.reset()
    # Of one thread CPU seconds: other processes on the machine do not count.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    worst, times = np.zeros(3), []
    for frame in frames:
        data = dict(inputs=dict(img=[torch.from_numpy(frame['images'])]),
                    data_samples=[Det3DDataSample(metainfo={k: v for k, v in frame.items() if k != 'images'})])
        start = clock()
        with torch.no_grad():
            results = model(**model.data_preprocessor(data, False), mode='tensor')
        middle = clock()
        inputs = [frame['images'].astype(np.float32), frame['lidar2img'].astype(np.float32)]
        if detector.remembers:
            motion = np.linalg.inv(frame['ego_pose']) @ (last or frame)['ego_pose']
            elapsed = frame['timestamp'] - (last or frame)['timestamp']
            inputs += [motion.astype(np.float32), np.float32([elapsed]), np.float32([frame['prev_exists']]), *memory]
        logits, codes, *memory = run(*inputs)
        times.append((middle - start, clock() - middle))
        last = frame
        true = (results[key][-1, 0].numpy() for key in ('logits', 'codes'))
        worst = np.maximum(worst, _difference(logits, codes, *true))
    return Check(*worst.tolist(), *np.median(times, axis=0).tolist())


def _difference(logits: np.ndarray, codes: np.ndarray, true_logits: np.ndarray,
                true_codes: np.ndarray) -> tuple[float, float, float]:
    """Largest differences of queries (Q, ...). Queries are taken in whichever order brings them together: two
    remembered objects of equal score may be in another order."""
    own, true = np.concatenate((codes, logits), 1), np.concatenate((true_codes, true_logits), 1)
    rows, columns = linear_sum_assignment(np.abs(true[:, None] - own).max(-1))
    own, true = own[columns], true[rows]
    others, logits = np.abs(own - true)[:, 3:], slice(box_code.CODE_SIZE - 3, None)
    return (others[:, logits].max(), np.linalg.norm(own[:, :3] - true[:, :3], axis=1).max(),
            others[:, :box_code.CODE_SIZE - 3].max())


def made_up_frames(image_size: tuple[int, int], num_cameras: int, number: int) -> list[dict]:
    """Frames of a made-up drive: random ``images`` (N, 3, height, width) uint8, a ring of cameras, a vehicle that
    drives a curve at 10 m/s; and the meta information of their samples."""
    random = np.random.default_rng(0)
    height, width = image_size
    turns = np.arange(num_cameras) * 2 * np.pi / num_cameras
    cos, sin, no = np.cos(turns), np.sin(turns), np.zeros(len(turns))
    lidar2cam = np.tile(np.eye(4), (len(turns), 1, 1))
    lidar2cam[:, :3, :3] = np.stack([cos, sin, no, no, no, no - 1, -sin, cos, no], -1).reshape(-1, 3, 3)
    lidar2cam[:, :3, 3] = random.uniform(-0.5, 0.5, (len(turns), 3))
    cam2img = np.tile(np.eye(4), (len(turns), 1, 1))
    cam2img[:, :3, :3] = [[0.8 * width, 0, width / 2], [0, 0.79 * width, height / 2], [0, 0, 1]]
    frames = []
    for step in range(number):
        angle = 0.05 * step
        lidar2global = np.eye(4)
        lidar2global[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        lidar2global[:3, 3] = 1000 + 100 * np.sin(angle), 600 + 100 * (1 - np.cos(angle)), 1.8
        images = random.integers(0, 256, (num_cameras, 3, height, width), dtype=np.uint8)
        frames.append(dict(
            images=images, cam2img=cam2img, lidar2cam=lidar2cam, lidar2img=cam2img @ lidar2cam, ego_pose=lidar2global,
            timestamp=0.5 * step, prev_exists=step > 0, scene_token='drive', token=f'frame {step}',
            box_type_3d=LiDARInstance3DBoxes, img_shape=[image_size] * num_cameras))
    return frames
