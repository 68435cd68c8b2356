"""StreamPETR's head once more, plain and in float64, from its description in tests/golden/README.md.

It shares nothing with georope.models. It gives the fixture ``streampetr`` and serves for the cases the fixture lacks.
"""
import math

import torch
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F

SPLIT, BINS, STRIDE = 0.75, 64, 16


def norm(x, weight=1.0, bias=0.0):
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def inverse_sigmoid(x):
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=1e-5) / (1 - x).clamp(min=1e-5))


def sine(x, channels):
    index = torch.arange(channels)
    phase = 2 * math.pi * x[..., None] / 10000 ** (2 * (index // 2).double() / channels)
    return torch.where(index % 2 == 0, phase.sin(), phase.cos())


def nerf(x):
    return torch.cat([wave(x * factor) for factor in (1, 2, 4, 8, 16, 32) for wave in (torch.sin, torch.cos)], -1)


def move(matrix, points):
    return torch.einsum('bij,bmj->bmi', matrix[:, :3, :3], points) + matrix[:, None, :3, 3]


def encode(boxes):
    centre, size, yaw, velocity = boxes.double().split((3, 3, 1, 2), -1)
    return torch.cat((centre, size.log(), yaw.sin(), yaw.cos(), velocity), -1)


class PlainStreamPETR:
    """Reads weights and sizes from a StreamPETRHead. ``memory`` is that of the reference: global, times negative."""

    def __init__(self, head):
        self.weights = {name: value.detach().double() for name, value in head.state_dict().items()}
        self.layers, self.heads = len(head.transformer.decoder.layers), head.transformer.decoder.num_heads
        self.lower, self.upper = head.pc_range.double().chunk(2)
        self.image_lower, self.image_upper = head.position_range.double().chunk(2)
        self.code_weights, self.classes = head.code_weights.double(), head.num_classes
        self.groups = head.denoising.groups
        self.length, self.topk, self.propagated = head.memory.length, head.topk_proposals, head.num_propagated
        self.memory = None

    def linear(self, name, x):
        return F.linear(x, self.weights[f'{name}.weight'], self.weights[f'{name}.bias'])

    def norm(self, name, x):
        return norm(x, self.weights[f'{name}.weight'], self.weights[f'{name}.bias'])

    def mlp(self, name, x, first='0', second='2'):
        return self.linear(f'{name}.{second}', self.linear(f'{name}.{first}', x).relu())

    def modulate(self, name, x, condition):
        condition = self.linear(f'{name}.reduce.0', condition).relu()
        return self.linear(f'{name}.gamma', condition) * norm(x) + self.linear(f'{name}.beta', condition)

    def attend(self, name, query, key, value, mask=None):
        weights, biases = (self.weights[f'{name}.in_proj_{part}'].chunk(3) for part in ('weight', 'bias'))
        query, key, value = (F.linear(x, *layer).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for x, *layer in zip((query, key, value), weights, biases))
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if mask is not None:
            logits = logits.masked_fill(mask, -torch.inf)
        return self.linear(f'{name}.out_proj', (logits.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def embed_points(self, points):
        channels = self.weights['query_embedding.0.weight'].shape[1] // 3
        return self.mlp('query_embedding', torch.cat([sine(points[..., axis], channels) for axis in (1, 0, 2)], -1))

    def embed_time(self, age):
        channels = len(self.weights['time_embedding.1.weight'])
        return self.norm('time_embedding.1', self.linear('time_embedding.0', sine(age, channels)))

    def embed_image(self, features, lidar2img, cam2img, chosen):
        """Content and position of the tokens; known bug: token t has the focal length of camera t % N."""
        batch, cameras, channels, rows, columns = features.shape
        v, u = torch.meshgrid(STRIDE * (torch.arange(rows) + 0.5), STRIDE * (torch.arange(columns) + 0.5),
                              indexing='ij')
        index = torch.arange(BINS).double()
        depth = 1 + (self.image_upper[0] - 1) / (BINS * (BINS + 1)) * index * (index + 1)
        pixels = torch.stack((u[..., None] * depth, v[..., None] * depth, depth.expand(rows, columns, -1),
                              torch.ones(rows, columns, BINS)), -1).double()
        points = torch.einsum('bnij,hwdj->bnhwdi', torch.linalg.inv(lidar2img), pixels)[..., :3]
        points = ((points - self.image_lower) / (self.image_upper - self.image_lower)).reshape(batch, -1, BINS * 3)
        focal = torch.stack((cam2img[..., 0, 0], cam2img[..., 1, 1]), -1).abs() / 1000
        cone = torch.cat((focal[:, torch.arange(points.shape[1]) % cameras], points[..., -3:],
                          points[..., 3 * 34:3 * 35]), -1)
        tokens = features.double().permute(0, 1, 3, 4, 2).reshape(batch, -1, channels)
        if chosen is not None:
            tokens, points, cone = (torch.stack([x[i, own] for i, own in enumerate(chosen)])
                                    for x in (tokens, points, cone))
        content = self.modulate('spatial_alignment', self.mlp('memory_embed', tokens), cone)
        gate = self.mlp('featurized_pe', content, 'conv_reduce', 'conv_expand').sigmoid()
        return content, self.mlp('position_encoder', inverse_sigmoid(points)) * gate

    def recall(self, poses, times, continued):
        """The reference's pre-update; ``continued`` (B,) is its prev_exists."""
        batch, channels = len(times), len(self.weights['time_embedding.1.weight'])
        if self.memory is None:
            self.memory = {name: torch.zeros(batch, self.length, *size).double() for name, size in dict(
                embedding=(channels, ), point=(3, ), velocity=(2, ), pose=(4, 4), time=()).items()}
        else:
            inverse, memory = torch.linalg.inv(poses), self.memory
            memory.update(time=memory['time'] + times[:, None], pose=inverse[:, None] @ memory['pose'],
                          point=move(inverse, memory['point']))
            for name, value in memory.items():
                memory[name] = value[:, :self.length] * continued.view(-1, *[1] * (value.dim() - 1))
        start = self.weights['pseudo_reference_points.weight'] * (self.upper - self.lower) + self.lower
        fresh = (1 - continued).view(-1, 1, 1)
        self.memory['point'][:, :self.propagated] += fresh * start
        self.memory['pose'][:, :self.propagated] += fresh[..., None] * torch.eye(4)
        return {name: value.clone() for name, value in self.memory.items()}

    def remember(self, codes, logits, outputs, poses, times):
        """The reference's post-update."""
        best = logits.sigmoid().amax(-1).topk(self.topk, dim=1).indices[..., None]
        codes, outputs = (x.detach().gather(1, best.expand(-1, -1, x.shape[-1])) for x in (codes, outputs))
        new = dict(embedding=outputs, point=codes[..., :3], velocity=codes[..., 8:],
                   pose=torch.eye(4).double().expand(*codes.shape[:2], 4, 4), time=codes.new_zeros(codes.shape[:2]))
        memory = {name: torch.cat((new[name], old), 1) for name, old in self.memory.items()}
        self.memory = memory | dict(point=move(poses, memory['point']), pose=poses[:, None] @ memory['pose'],
                                    time=memory['time'] - times[:, None])

    def noisy(self, truth, noise):
        """Reference points, mask among queries, and (sample, query, label, code) of denoising queries."""
        counts = [len(labels) for _, labels in truth]
        size = max(counts)
        boxes = torch.cat([boxes for boxes, _ in truth]).double().repeat(self.groups, 1)
        labels = torch.cat([labels for _, labels in truth]).repeat(self.groups)
        where = [(i, group * size + k) for group in range(self.groups) for i, count in enumerate(counts)
                 for k in range(count)]
        sample, query = (torch.tensor(x) for x in zip(*where))
        shift = 2 * noise.double() - 1
        centre = ((boxes[:, :3] + shift * boxes[:, 3:6] / 2 - self.lower) / (self.upper - self.lower)).clamp(0, 1)
        reference = torch.zeros(len(truth), self.groups * size, 3).double()
        reference[sample, query] = centre
        labels[shift.norm(dim=1) > SPLIT] = self.classes
        return reference, sample, query, labels, encode(boxes)

    def forward(self, features, lidar2img, cam2img, poses, times, continued, chosen=None, truth=None, noise=None):
        """One frame of all stream slots; a dict. ``truth``: (boxes, labels) per slot, or None for no denoising."""
        before = self.recall(poses, times, continued)
        reference = self.weights['reference_points.weight'].expand(len(times), -1, -1)
        first, mask, noisy = 0, None, None
        if truth is not None and any(len(labels) for _, labels in truth):
            dn_reference, *noisy = self.noisy(truth, noise)
            first, learned = dn_reference.shape[1], reference.shape[1]
            mask = torch.zeros(first + learned + self.propagated, first + learned + self.length, dtype=torch.bool)
            group = torch.arange(first) // (first // self.groups)
            mask[:first, :first] = group[:, None] != group
            mask[first:, :first] = True
            reference = torch.cat((dn_reference, reference), 1)
        old_reference = (before['point'] - self.lower) / (self.upper - self.lower)
        still = nerf(torch.cat((torch.zeros(3), torch.eye(4)[:3].flatten())).double())
        motion = nerf(torch.cat((before['velocity'], before['time'][..., None], before['pose'][..., :3, :].flatten(2)),
                                -1))
        position = self.embed_points(reference)
        content = self.modulate('ego_pose_memory', torch.zeros_like(position), still)
        position = self.modulate('ego_pose_pe', position, still) + self.embed_time(torch.zeros(()).double())
        old_content = self.modulate('ego_pose_memory', before['embedding'], motion)
        old_position = self.modulate('ego_pose_pe', self.embed_points(old_reference), motion) + self.embed_time(
            before['time'])
        number = self.propagated
        query, position, reference = (torch.cat((x, old[:, :number]), 1) for x, old in (
            (content, old_content), (position, old_position), (reference, old_reference)))
        rest, rest_position = old_content[:, number:], old_position[:, number:]
        tokens, token_position = self.embed_image(features, lidar2img, cam2img, chosen)
        outputs = []
        for i in range(self.layers):
            name = f'transformer.decoder.layers.{i}'
            key, value = torch.cat((query + position, rest + rest_position), 1), torch.cat((query, rest), 1)
            for k, part in enumerate((
                    lambda x, n=name, key=key, value=value: self.attend(
                        f'{n}.attentions.0.attn', x + position, key, value, mask),
                    lambda x, n=name: self.attend(
                        f'{n}.attentions.1.attn', x + position, tokens + token_position, tokens),
                    lambda x, n=name: self.mlp(f'{n}.ffns.0.layers', x, '0.0', '1'))):
                query = self.norm(f'{name}.norms.{k}', query + part(query))
            outputs.append(self.norm('transformer.decoder.post_norm', query))
        outputs = torch.stack(outputs)
        hidden = outputs
        for i in (0, 3):
            hidden = self.norm(f'cls_branches.0.{i + 1}', self.linear(f'cls_branches.0.{i}', hidden)).relu()
        logits = self.linear('cls_branches.0.6', hidden)
        codes = self.linear('reg_branches.0.4', self.mlp('reg_branches.0', outputs).relu())
        centre = (codes[..., :3] + inverse_sigmoid(reference)).sigmoid() * (self.upper - self.lower) + self.lower
        codes = torch.cat((centre, codes[..., 3:]), -1)
        results = dict(before=before, logits=logits[:, :, first:], codes=codes[:, :, first:])
        if noisy is not None:
            sample, noisy_query, results['dn_labels'], results['dn_targets'] = noisy
            results.update(dn_logits=logits[:, sample, noisy_query], dn_codes=codes[:, sample, noisy_query])
        self.remember(results['codes'][-1], results['logits'][-1], outputs[-1, :, first:], poses, times)
        return results

    def focal(self, logits, labels):
        hot = F.one_hot(labels, self.classes + 1)[..., :-1].double()
        score = logits.sigmoid()
        cost = F.binary_cross_entropy_with_logits(logits, hot, reduction='none')
        return ((0.25 * hot + 0.75 * (1 - hot)) * (hot - score).abs() ** 2 * cost).sum()

    def losses(self, results, truth):
        losses, layers = {}, len(results['logits'])
        for i in range(layers):
            prefix = '' if i == layers - 1 else f'd{i}.'
            classes, boxes, number = [], [], 0
            for logits, codes, (true_boxes, labels) in zip(results['logits'][i], results['codes'][i], truth):
                true, score = encode(true_boxes), logits.sigmoid()
                cost = (0.25 * (1 - score) ** 2 * -(score + 1e-12).log()
                        - 0.75 * score ** 2 * -(1 - score + 1e-12).log())[:, labels] * 2
                distance = ((codes[:, None] - true).abs() * self.code_weights)
                query, own = linear_sum_assignment((cost + 0.25 * distance[..., :8].sum(-1)).detach())
                target = torch.full((len(logits), ), self.classes)
                target[query] = labels[own]
                classes.append(self.focal(logits, target))
                boxes.append(distance[query, own].sum())
                number += len(query)
            losses[f'{prefix}loss_cls'] = 2 * sum(classes) / max(number, 1)
            losses[f'{prefix}loss_bbox'] = 0.25 * sum(boxes) / max(number, 1)
            if 'dn_logits' in results:
                number = len(results['dn_labels'])
                losses[f'{prefix}dn_loss_cls'] = 2 * self.focal(results['dn_logits'][i], results['dn_labels']) / max(
                    number * math.pi / 6 * SPLIT ** 3, 1)
                distance = (results['dn_codes'][i] - results['dn_targets']).abs() * self.code_weights
                losses[f'{prefix}dn_loss_bbox'] = 0.25 * distance.sum() / number
        return losses
