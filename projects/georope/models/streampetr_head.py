"""The StreamPETR head: PETR's, with queries that carry on from a memory of previous frames (arXiv 2303.11926).

Parameters have the names of the released weights.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from georope.registry import MODELS

from . import box_code
from .decoder_inputs import Queries
from .denoising import DenoisingQueries
from .embeddings import MLN, nerf_embedding, sine_embedding
from .memory import Frames, Memory, MemoryEntries
from .petr_head import PETRHead

MOTION = 15  # velocity 2, age 1, pose 12


@MODELS.register_module()
class StreamPETRHead(PETRHead):
    """PETR head with a memory: each frame's best predictions are queries and keys of the frames after it.

    Queries are [denoising | learned | propagated]; the first ``num_propagated`` entries of the memory are queries with
    content, position and reference point, the others are further keys of every self-attention. Motion-aware
    normalisation adapts content and position of all of them to their age and to the ego motion since.

    Frames come one at a time, in order, see ``Memory``. A stream slot starts anew at the start of a scene, and all of
    them do at a switch between training and evaluation. Every forward pass changes the memory.

    ``compat`` repeats two further known bugs of the reference: empty memory entries take part in attention, also those
    that were never written, and a remembered velocity stays in the axes of the frame in which it was seen.

    Args:
        memory_len: objects remembered, over all frames; at ``topk_proposals`` per frame ``memory_len /
            topk_proposals`` frames.
        topk_proposals: predictions of a frame that are remembered.
        num_propagated: remembered objects that become queries.
        motion_in_time: rotations use the positions to which their predicted velocities have moved remembered objects by
            now, x + v dt (our choice); reference points and all else stay where the objects were seen.
        kwargs: see ``PETRHead``.
    """

    def __init__(self, *args, memory_len: int = 1024, topk_proposals: int = 256, num_propagated: int = 256,
                 motion_in_time: bool = False, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if motion_in_time and not (self.encoding.codes_points or self.self_encoding.codes_points):
            raise ValueError('motion_in_time: no encoding of the head encodes the positions of queries')
        self.motion_in_time = motion_in_time
        if not 0 < num_propagated <= memory_len or not 0 < topk_proposals <= self.num_query + num_propagated:
            raise ValueError('StreamPETRHead needs 0 < num_propagated <= memory_len and 0 < topk_proposals <= '
                             f'num_query + num_propagated, not num_propagated={num_propagated}, '
                             f'memory_len={memory_len}, topk_proposals={topk_proposals}, num_query={self.num_query}')
        if memory_len % topk_proposals:
            raise ValueError(f'memory_len={memory_len} must be a multiple of topk_proposals={topk_proposals}: whole '
                             'frames are forgotten')
        self.topk_proposals = topk_proposals
        self.num_propagated = num_propagated
        self.memory = Memory(memory_len)
        dims = self.embed_dims
        # Positions of the propagated queries in a scene's first frame; not learned.
        self.pseudo_reference_points = nn.Embedding(num_propagated, 3)
        self.pseudo_reference_points.weight.requires_grad = False
        self.time_embedding = nn.Sequential(nn.Linear(dims, dims), nn.LayerNorm(dims))
        condition = len(nerf_embedding(torch.zeros(MOTION)))
        self.ego_pose_pe = MLN(condition, dims)
        self.ego_pose_memory = MLN(condition, dims)

    @property
    def num_predictions(self) -> int:
        return self.num_query + self.num_propagated

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.uniform_(self.pseudo_reference_points.weight)

    def train(self, mode: bool = True) -> StreamPETRHead:
        """Switch, and forget the frames of the other mode."""
        if mode != self.training:
            self.memory.reset()
        return super().train(mode)

    def forward(self, features: Tensor | Sequence[Tensor], metas: Sequence[dict],
                denoising: DenoisingQueries | None = None, tokens: Tensor | None = None) -> dict:
        """Predict from one frame per stream slot and remember the best predictions; see ``PETRHead.forward``.

        ``metas`` need ego_pose, timestamp, scene_token and prev_exists as well, see ``Frames``.
        """
        results = super().forward(features, metas, denoising, tokens)
        scores = results['logits'][-1].sigmoid().amax(-1)
        best = scores.topk(self.topk_proposals, dim=1).indices[..., None]
        codes, embeddings = (x[-1].gather(1, best.expand(-1, -1, x.shape[-1]))
                             for x in (results['codes'], results['embeddings']))
        self.memory.update(embeddings, codes[..., box_code.CENTRE], codes[..., box_code.VELOCITY])
        return results

    def _make_queries(self, metas: Sequence[dict], device: torch.device,
                      denoising: DenoisingQueries | None) -> Queries:
        """The queries of a batch, and the rest of the memory as keys."""
        queries = super()._make_queries(metas, device, denoising)
        entries = self.memory.get(Frames.read(metas, device), self._to_metres(self.pseudo_reference_points.weight),
                                  queries.content.shape[-1])
        with torch.autocast(device.type, enabled=False):
            lower, upper = self.pc_range.chunk(2)
            points = entries.points.float()
            reference = (points - lower) / (upper - lower)  # not clamped
            motion, age = self._embed_motion(entries)
            still, now = self._embed_motion(_this_frame(device))

        content = self.ego_pose_memory(queries.content, still)
        position = self.ego_pose_pe(queries.position, still) + self.time_embedding(now)
        old_content = self.ego_pose_memory(entries.embedding, motion)
        old_position = self.ego_pose_pe(self._embed_points(reference), motion) + self.time_embedding(age)
        first = self.num_propagated
        mask, padding = queries.mask, queries.padding
        rest = self.memory.length - first
        if mask is not None:
            mask = F.pad(mask, (0, rest))
        if not self.compat and min(entries.filled) < self.memory.length:
            nothing = torch.zeros(queries.reference.shape[:2], dtype=torch.bool, device=device)
            padding = F.pad(nothing, (0, first)) if padding is None else padding
            padding = torch.cat((padding, entries.empty[:, first:]), dim=1)
        elif padding is not None:
            padding = F.pad(padding, (0, rest))
        queries = Queries(
            torch.cat((content, old_content[:, :first]), dim=1), torch.cat((position, old_position[:, :first]), dim=1),
            torch.cat((queries.reference, reference[:, :first]), dim=1), mask, padding, old_content[:, first:],
            old_position[:, first:], points[:, first:],
            torch.cat((torch.zeros_like(queries.reference[..., 0]), -entries.times.float()), dim=1))
        if self.motion_in_time or self.uncertain_queries is not None:
            self._add_drift(queries, entries)
        return queries

    def _add_drift(self, queries: Queries, entries: MemoryEntries) -> None:
        """How far the predicted velocities have moved remembered objects since they were seen."""
        with torch.autocast(entries.points.device.type, enabled=False):
            # Columns of poses turn a velocity into the current frame.
            drift = (entries.poses[..., :3, :2] * entries.velocity[..., None, :]).sum(-1) * entries.times[..., None]
            first, num = self.num_propagated, queries.reference.shape[1]
            queries.drift = F.pad(drift[:, :first].float(), (0, 0, num - first, 0))
            if self.motion_in_time:
                queries.points = self._to_metres(queries.reference) + queries.drift
                queries.temporal_points = (entries.points + drift)[:, first:].float()

    def _embed_motion(self, entries: MemoryEntries) -> tuple[Tensor, Tensor]:
        """Conditions (B, M, 180) and sines of the age (B, M, C) for memory entries."""
        velocity, age, poses = entries.velocity, entries.times.float(), entries.poses[..., :3, :].float()
        if not self.compat:
            velocity = (poses[..., :2, :2] * velocity[..., None, :]).sum(-1)
        motion = torch.cat((velocity, age[..., None], poses.flatten(-2)), dim=-1)
        return nerf_embedding(motion), sine_embedding(age, self.embed_dims)


def _this_frame(device: torch.device) -> MemoryEntries:
    """An entry of an object that is seen now and at rest: (1, 1)."""
    wide: dict[str, Any] = dict(dtype=torch.float64, device=device)
    return MemoryEntries(
        torch.zeros(1, 1, 0, device=device), torch.zeros(1, 1, 3, **wide), torch.zeros(1, 1, 2, device=device),
        torch.eye(4, **wide)[None, None], torch.zeros(1, 1, **wide), (1, ))
