"""StreamPETR's memory: what every stream slot saw in its previous frames (arXiv 2303.11926).

A stream slot is a position in the batch: item b of a batch continues item b of the batch before it. A slot starts anew
at the start of a scene, and whenever the memory cannot be that of its previous frame.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from georope.rope.transfer import to_device

from .cameras import sample_name


@dataclass(frozen=True)
class Frames:
    """Where and when the samples of a batch were recorded, one per stream slot.

    Attributes:
        names: sample tokens, for messages.
        poses: (B, 4, 4) float64, LiDAR -> global, BEV augmentation included.
        inverses: (B, 4, 4) float64, global -> LiDAR.
        seconds: (B, 1) float64, ``times``.
        scenes: scene tokens.
        times: seconds from any zero that a scene's frames share.
        continued: whether a slot's previous frame is the one before this one.
    """

    names: list[str]
    poses: Tensor
    inverses: Tensor
    seconds: Tensor
    scenes: list[str]
    times: list[float]
    continued: list[bool]

    @classmethod
    def read(cls, metas: Sequence[dict], device: torch.device) -> Frames:
        """From the meta information ``ego_pose``, ``scene_token``, ``timestamp``, ``prev_exists`` of the samples.

        Raises:
            ValueError: if one of them is missing, or a pose or time is no pose or time; names the sample.
        """
        poses = []
        for meta in metas:
            missing = [key for key in ('ego_pose', 'scene_token', 'timestamp', 'prev_exists') if meta.get(key) is None]
            if missing:
                raise ValueError(f'sample {sample_name(meta)}: no {missing} in its meta information; pack it '
                                 '(georope.PackCameraInputs does)')
            pose = np.asarray(meta['ego_pose'], dtype=np.float64)
            if (pose.shape != (4, 4) or not np.isfinite(pose).all() or not np.linalg.det(pose[:3, :3]) > 1e-9
                    or np.abs(pose[3] - (0, 0, 0, 1)).max() > 1e-6):
                raise ValueError(f'sample {sample_name(meta)}: ego_pose must be a finite (4, 4) matrix that has an '
                                 'inverse, mirrors nothing and ends in the row 0, 0, 0, 1, not '
                                 f'{pose.tolist()}')
            if not np.isfinite(meta['timestamp']):
                raise ValueError(f'sample {sample_name(meta)}: timestamp is {meta["timestamp"]}')
            poses.append(pose)
        times = [float(meta['timestamp']) for meta in metas]
        matrices = np.stack((poses, np.linalg.inv(poses)), axis=1).reshape(len(metas), 32)
        packed = to_device(torch.from_numpy(np.column_stack((matrices, times))), device)
        poses, inverses = packed[:, :32].unflatten(1, (2, 4, 4)).unbind(1)
        return cls([sample_name(meta) for meta in metas], poses, inverses, packed[:, 32:],
                   [meta['scene_token'] for meta in metas], times, [bool(meta['prev_exists']) for meta in metas])


@dataclass(frozen=True)
class MemoryEntries:
    """Remembered objects, newest first, seen from one frame per stream slot. An empty entry holds zeros.

    Attributes:
        embedding: (B, M, C) float32, the decoder's output.
        points: (B, M, 3) float64, centres, metres; they stay where they were seen.
        velocity: (B, M, 2) float32, m/s, in the LiDAR frame in which the object was seen.
        poses: (B, M, 4, 4) float64, from the LiDAR frame in which the object was seen.
        times: (B, M) float64, seconds since the object was seen.
        filled: number of entries of each stream slot that are not empty; these come first.
    """

    embedding: Tensor
    points: Tensor
    velocity: Tensor
    poses: Tensor
    times: Tensor
    filled: tuple[int, ...]

    @property
    def empty(self) -> Tensor:
        """bool (B, M)."""
        filled = to_device(torch.tensor(self.filled), self.points.device)
        return torch.arange(self.points.shape[1], device=self.points.device) >= filled[:, None]

    def seen_from(self, transform: Tensor, times: Tensor) -> MemoryEntries:
        """The same in other coordinates: ``transform`` (B, 4, 4) maps to them, ``times`` (B, M) replace the old."""
        points = self.points @ transform[:, :3, :3].mT + transform[:, None, :3, 3]
        return replace(self, points=points, poses=transform[:, None] @ self.poses, times=times)

    def where(self, slots: Sequence[bool], others: MemoryEntries) -> MemoryEntries:
        """These in some stream slots, ``others`` in the rest."""
        mask = to_device(torch.tensor(slots), self.points.device)
        # torch.where, since a product with the mask would keep NaN: 0 * NaN is NaN.
        chosen = {name: torch.where(mask.view(-1, *[1] * (own.dim() - 1)), own, getattr(others, name))
                  for name, own in self.tensors().items()}
        return replace(self, **chosen, filled=tuple(
            own if slot else other for slot, own, other in zip(slots, self.filled, others.filled)))

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != 'filled'}


class Memory:
    """Remembers objects of previous frames: ``get`` them in the current frame, ``update`` with those of this one.

    Kept in global coordinates and absolute time, float64. No parameter and no buffer: it is never saved, nor shared
    between processes or stream slots.

    Args:
        length: entries that ``get`` returns.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.reset()

    def reset(self, slots: Iterable[int] | None = None) -> None:
        """Forget what all stream slots remember, or some."""
        if slots is None:
            self._kept: MemoryEntries | None = None  # points, poses: global; times: when it was seen
            self._last: list[tuple[str, float] | None] = []  # scene and time of each slot's previous frame
        for slot in slots or ():
            self._last[slot] = None
        self._current: tuple[Frames, MemoryEntries] | None = None

    def get(self, frames: Frames, start_points: Tensor, channels: int) -> MemoryEntries:
        """What the stream slots remember, in the coordinates of their current frames.

        A slot starts anew where its frame is not continued, is of another scene than the slot's last one, or comes
        after a reset; all slots do where their number has changed. Such a slot holds ``start_points`` without content,
        of age 0 and at rest, in its first entries, and nothing else, whatever it held before.

        Args:
            frames: the current ones.
            start_points: (P, 3), metres.
            channels: C of the embeddings.

        Raises:
            ValueError: if a continued frame is earlier than the slot's last one; names the sample.
        """
        if len(self._last) != len(frames.scenes):
            self.reset()
            self._last = [None] * len(frames.scenes)
        anew = [self._starts(frames, slot) for slot in range(len(self._last))]
        kept = self._kept
        if kept is None or all(anew):
            entries = self._start(frames, start_points, channels)
        else:
            kept = replace(kept, **{name: x[:, :self.length] for name, x in kept.tensors().items()},
                           filled=tuple(min(filled, self.length) for filled in kept.filled))
            entries = kept.seen_from(frames.inverses, frames.seconds - kept.times)
            if any(anew):
                entries = self._start(frames, start_points, channels).where(anew, entries)
        self._current = frames, entries
        return entries

    def update(self, embedding: Tensor, points: Tensor, velocity: Tensor) -> None:
        """Put objects of the current frames in front of what the last ``get`` returned. No gradient is kept.

        Args:
            embedding: (B, K, C).
            points: (B, K, 3) metres, current LiDAR frame.
            velocity: (B, K, 2) m/s, current LiDAR frame.
        """
        if self._current is None:
            raise RuntimeError('Memory.update needs a get of the same frames before it')
        (frames, entries), self._current = self._current, None
        batch, num = points.shape[:2]
        poses = torch.eye(4, dtype=torch.float64, device=points.device).expand(batch, num, 4, 4)
        new = dict(embedding=embedding.float(), points=points.double(), velocity=velocity.float(), poses=poses,
                   times=points.new_zeros(batch, num).double())
        both = replace(entries, **{name: torch.cat((new[name].detach(), old), dim=1)
                                 for name, old in entries.tensors().items()},
                       filled=tuple(num + filled for filled in entries.filled))
        self._kept = both.seen_from(frames.poses, frames.seconds - both.times)
        self._last = list(zip(frames.scenes, frames.times))

    def _starts(self, frames: Frames, slot: int) -> bool:
        last = self._last[slot]
        if last is None or not frames.continued[slot] or last[0] != frames.scenes[slot]:
            return True
        if frames.times[slot] < last[1]:
            raise ValueError(
                f'sample {frames.names[slot]} is {last[1] - frames.times[slot]} s earlier than the frame before it in '
                'its stream slot: a stream needs the frames of a scene in order (georope.StreamBatchSampler in '
                'training, georope.SceneBatchSampler in tests)')
        return False

    def _start(self, frames: Frames, start_points: Tensor, channels: int) -> MemoryEntries:
        batch, num, device = len(frames.scenes), len(start_points), frames.poses.device
        times = torch.zeros(batch, self.length, dtype=torch.float64, device=device)
        points, poses = times.new_zeros(*times.shape, 3), times.new_zeros(*times.shape, 4, 4)
        points[:, :num] = start_points.detach()
        poses[:, :num] = torch.eye(4, dtype=torch.float64, device=device)
        return MemoryEntries(torch.zeros(*times.shape, channels, device=device), points,
                     torch.zeros(*times.shape, 2, device=device), poses, times, (num, ) * batch)
