"""The PETR detection head: image tokens and 3D queries in, boxes out (PETR, arXiv 2203.05625).

The recipe is that of PETR in the StreamPETR repository (arXiv 2303.11926); parameters have the names of its released
weights. On top stands a rotary encoding between image tokens and queries, see ``georope.rope``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from mmdet.utils import reduce_mean
from mmengine.dist import get_world_size
from mmengine.model import BaseModule, bias_init_with_prob
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from georope.registry import MODELS, TASK_UTILS
from georope.rope import PositionEncoding, Rays
from georope.rope.transfer import to_device

from . import box_code
from .assignment import Targets, match, read_targets
from .branches import cls_branch, mlp, reg_branch
from .cameras import Cameras, as_maps, as_strides, padded_tokens, stack_matrices
from .decoder import PETRDecoder
from .decoder_inputs import ImageTokens, Queries
from .denoising import Denoising, DenoisingQueries
from .embeddings import MLN, SEGate, cone_code, frustum_coordinates, inverse_sigmoid, lid_depths, sine_embedding_3d
from .losses import check_losses, check_predictions
from .query_rotations import QueryPositions, QueryRotations, check_encodings
from .token_encoder import TokenEncoder

DEPTH_BINS = 64


def _encode(head: PETRHead, image: ImageTokens) -> list[Tensor]:
    """What enters each layer of the token encoder and what leaves the last, each (B, L, C). A function, not a method:
    compiled, a copy of the head must not run with the first one's weights."""
    assert head.token_encoder is not None, 'forward asks'
    return head.token_encoder(image.content, image.geometry, image.padding)


def _decode(head: PETRHead, image: ImageTokens, queries: Queries) -> Tensor:
    """(layers, B, Q, C); a function as ``_encode`` is."""
    decoder, encoding = head.decoder, head.encoding
    points = head._to_metres(queries.reference) if queries.points is None else queries.points
    rotations = QueryRotations(
        encoding, head.self_encoding, QueryPositions(points, queries.temporal_points, queries.times, queries.drift),
        lambda output: head._predict_codes(output, queries.reference), head.moving_queries, head.uncertain_queries)
    return decoder(
        queries.content, queries.position, image.content, image.position,
        key_rotations=[encoding.rotate_keys(image.frame, image.content, layer=i) for i in range(len(decoder.layers))],
        query_mask=queries.mask, query_padding=queries.padding, memory_padding=image.padding,
        temporal=queries.temporal, temporal_pos=queries.temporal_pos, **rotations.first(),
        move=rotations.next if rotations.change else None)


@MODELS.register_module()
class PETRHead(BaseModule):
    """PETR head with denoising queries, Hungarian assignment and no suppression.

    It differs from the reference on purpose, without effect on released weights: padding is masked; samples without
    objects train; an unknown velocity takes out two numbers of a box, not the object; averages are over all ranks;
    values that are not finite are an error, not a zero. ``compat`` repeats the known bugs of the reference.

    Args:
        num_classes: classes.
        pc_range: (x, y, z minimum, x, y, z maximum), metres, LiDAR frame: reference points are fractions of it.
        position_range: likewise, normalises the 3D coordinates of image tokens; its x maximum ends the depth bins.
        bbox_coder: turns logits and codes into boxes.
        assigner: assigns objects to queries, see ``assignment.match``.
        loss_cls, loss_bbox: losses.
        in_channels: channels of the feature map.
        embed_dims: channels of tokens and queries.
        num_query: learned queries.
        stride: pixels per cell of the feature map; of several feature maps a list, and all their cells are tokens.
        position_embedding: True keeps PETR's 3D position embedding, its gate and the cone alignment ("hybrid" where
            there is a rotary encoding as well); False builds none of them ("replace"), so that no camera or world
            coordinate enters the content of a token. The norm inside the alignment stays either way.
        encoding: the encoding of cross-attention, one of ``georope.rope``; None for none. Here and in the next one,
            num_heads, head_dim and num_layers are those of the decoder.
        self_encoding: the rotary encoding of self-attention among 3D queries (and the memory's), whatever that of
            cross-attention is: ``georope.RoPE3D`` or ``georope.BEVTimeRoPE``; None for none.
        moving_queries, uncertain_queries: ``moving`` and ``uncertain`` of ``QueryRotations``; the latter needs an
            encoding that takes ``spreads`` of queries, such as ``WorldRoPE``.
        token_encoder: arguments of ``TokenEncoder`` and ``num_layers``, each with an encoding as ``encoding`` of its
            own: image tokens attend to each other before queries attend to them. None for no such layers.
        decoder: arguments of ``PETRDecoder``.
        denoising: arguments of ``Denoising``; None for none.
        code_weights: weights of the ten numbers of a box code, in the assignment and in the loss.
        compat: repeat the known bugs of the StreamPETR repository, with which its released weights were trained: image
            token t has the focal length of camera ``t % N`` instead of its own camera's; empty denoising queries take
            part in the attention of their group.
    """

    _encode, _decode = staticmethod(_encode), staticmethod(_decode)
    encoding: PositionEncoding
    self_encoding: PositionEncoding
    token_encoder: TokenEncoder | None
    pc_range: Tensor
    position_range: Tensor
    code_weights: Tensor
    depths: Tensor

    def __init__(self,
                 num_classes: int,
                 pc_range: Sequence[float],
                 position_range: Sequence[float],
                 bbox_coder: dict,
                 assigner: dict,
                 loss_cls: dict,
                 loss_bbox: dict,
                 in_channels: int = 256,
                 embed_dims: int = 256,
                 num_query: int = 900,
                 stride: int | Sequence[int] = 16,
                 position_embedding: bool = True,
                 encoding: dict | None = None,
                 self_encoding: dict | None = None,
                 moving_queries: bool = False,
                 uncertain_queries: dict | None = None,
                 token_encoder: dict | None = None,
                 decoder: dict | None = None,
                 denoising: dict | None = None,
                 code_weights: Sequence[float] = (2, 2, 1, 1, 1, 1, 1, 1, 0.2, 0.2),
                 compat: bool = False,
                 init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg)
        if len(code_weights) != box_code.CODE_SIZE:
            raise ValueError(f'code_weights must have {box_code.CODE_SIZE} numbers, not {len(code_weights)}')
        self.num_classes = num_classes
        self.embed_dims = embed_dims
        self.num_query = num_query
        self.stride = stride if isinstance(stride, int) else tuple(stride)
        self.compat = compat
        for name, values in (('pc_range', pc_range), ('position_range', position_range), ('code_weights', code_weights),
                             ('depths', lid_depths(DEPTH_BINS, 1.0, position_range[3]))):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32), persistent=False)

        self.position_embedding = position_embedding
        self._build_image_layers(in_channels, embed_dims)

        self.reference_points = nn.Embedding(num_query, 3)
        self.query_embedding = mlp(embed_dims * 3 // 2, embed_dims, embed_dims)
        self.transformer = nn.ModuleDict(dict(decoder=PETRDecoder(embed_dims, **(decoder or {}))))
        num_layers, num_heads = len(self.decoder.layers), self.decoder.num_heads

        def build_encoding(cfg: dict | None, num_layers: int) -> PositionEncoding:
            return MODELS.build(cfg or dict(type='georope.NoEncoding'), default_args=dict(
                num_heads=num_heads, head_dim=embed_dims // num_heads, num_layers=num_layers))

        self.encoding, self.self_encoding = (build_encoding(cfg, num_layers) for cfg in (encoding, self_encoding))
        check_encodings(self.encoding, self.self_encoding, moving_queries, uncertain_queries)
        self.moving_queries, self.uncertain_queries = moving_queries, uncertain_queries
        # One branch serves all layers; the list only gives it the names that released weights have.
        self.cls_branches = nn.ModuleList([cls_branch(embed_dims, num_classes)] * num_layers)
        self.reg_branches = nn.ModuleList([reg_branch(embed_dims)] * num_layers)

        self.token_encoder = None
        if token_encoder is not None:
            options = dict(token_encoder)
            encodings = [build_encoding(encoding, 1) for _ in range(options.pop('num_layers'))]
            self.token_encoder = TokenEncoder(embed_dims, encodings, **options)

        self.denoising = None if denoising is None else Denoising(**denoising)
        self.bbox_coder = TASK_UTILS.build(bbox_coder)
        self.assigner = TASK_UTILS.build(assigner)
        self.loss_cls = MODELS.build(loss_cls)
        self.loss_bbox = MODELS.build(loss_bbox)

    def _build_image_layers(self, in_channels: int, embed_dims: int) -> None:
        """What ``_embed_tokens`` needs."""
        self.memory_embed = mlp(in_channels, embed_dims, embed_dims)
        if self.position_embedding:
            self.position_encoder = mlp(3 * DEPTH_BINS, 4 * embed_dims, embed_dims)
            self.featurized_pe = SEGate(embed_dims)
            self.spatial_alignment = MLN(8, embed_dims)

    def init_weights(self) -> None:
        """Reference points spread over the range, DETR's decoder weights, classes that start at a score of 0.01."""
        super().init_weights()
        nn.init.uniform_(self.reference_points.weight)
        self.decoder.init_weights()
        *_, bias = self.cls_branches[0].parameters()
        nn.init.constant_(bias, bias_init_with_prob(0.01))

    def compile(self, **options) -> None:
        """Rotations, decoder and token encoder by ``torch.compile``, whose ``options`` these are. Names of parameters
        stay."""
        self._encode, self._decode = torch.compile(_encode, **options), torch.compile(_decode, **options)

    @property
    def decoder(self) -> PETRDecoder:
        return cast(PETRDecoder, self.transformer['decoder'])

    @property
    def num_predictions(self) -> int:
        """Queries that predict, without the denoising ones."""
        return self.num_query

    def forward(self, features: Tensor | Sequence[Tensor], metas: Sequence[dict],
                denoising: DenoisingQueries | None = None, tokens: Tensor | None = None) -> dict:
        """Predict from one frame per sample.

        Args:
            features: (B, N, in_channels, H, W), any number N of cameras; where there are several strides, as many
                such maps, finest first.
            metas: meta information of the samples: lidar2img (N, 4, 4), cam2img (N, 3 or 4, 3 or 4) where the 3D
                position embedding is on, img_shape (valid image size).
            denoising: queries that stand in front of the others.
            tokens: (B, K), the image tokens to attend to, of N * H * W in the order (camera, row, column), those of
                further maps behind them; None for all.

        Returns:
            dict of ``logits`` (layers, B, num_predictions, num_classes), ``codes`` (layers, B, num_predictions, 10),
            see ``box_code``, ``embeddings`` (layers, B, num_predictions, C), the decoder's outputs they come from;
            with ``denoising`` also ``dn_logits`` (layers, M, num_classes) and ``dn_codes`` (layers, M, 10) of its M
            noisy objects. float32. With an encoding that has losses, also ``image``, the ``ImageTokens``.
        """
        image = self._embed_image(features, metas, tokens)
        if self.token_encoder is not None:
            *image.entered, image.content = self._encode(self, image)
        device = image.content.device
        queries = self._make_queries(metas, device, denoising)
        outputs = self._decode(self, image, queries)

        with torch.autocast(device.type, enabled=False):
            outputs = outputs.float()
            logits = self.cls_branches[0](outputs)
        codes = self._predict_codes(outputs, queries.reference)
        own = slice(-self.num_predictions, None)
        results = dict(logits=logits[:, :, own], codes=codes[:, :, own], embeddings=outputs[:, :, own])
        if self.encoding.has_losses:
            results['image'] = image
        if denoising is not None:
            results['dn_logits'] = logits[:, denoising.sample, denoising.query]
            results['dn_codes'] = codes[:, denoising.sample, denoising.query]
        return results

    def loss(self, features: Tensor | Sequence[Tensor], data_samples: Sequence,
             tokens: Tensor | None = None) -> dict[str, Tensor]:
        """Losses of one frame per sample.

        Args:
            features: see ``forward``.
            data_samples: with ``gt_instances_3d`` (bboxes_3d, labels_3d); any may be without objects.
            tokens: see ``forward``.

        Returns:
            ``loss_cls`` and ``loss_bbox`` of the last decoder layer, ``d0.loss_cls`` ... of the others; likewise
            ``dn_loss_cls`` ... when denoising is on (0 in a batch without objects). Each is this rank's sum divided by
            the mean number of objects of a rank, so that gradients averaged over ranks are those of one process with
            the whole batch. Also those of the encoding, see ``PositionEncoding.losses``.

        Raises:
            FloatingPointError: if predictions or losses are not finite; names the samples.
            ValueError: if the ground truth is not usable; names the sample.
        """
        metas = [sample.metainfo for sample in data_samples]
        targets = read_targets(data_samples, self.num_classes, self.pc_range.device)
        denoising = None
        if self.training and self.denoising is not None:
            denoising = self.denoising(targets, self.pc_range, self.num_predictions, self.num_classes)
        results = self(features, metas, denoising, tokens)
        check_predictions([results[name].transpose(0, 1) for name in ('logits', 'codes')], metas)
        losses = self.loss_by_feat(results, targets, denoising)
        check_losses(losses, metas)
        return losses

    def loss_by_feat(self, results: dict, targets: Sequence[Targets],
                     denoising: DenoisingQueries | None = None) -> dict[str, Tensor]:
        """Losses of what ``forward`` returned; see ``loss``."""
        positives = sum(min(len(target.labels), self.num_predictions) for target in targets)
        noisy = 0 if denoising is None else len(denoising.labels)
        # Made whatever this rank's objects: no rank waits for another.
        totals = reduce_mean(to_device(torch.tensor((positives, noisy), dtype=torch.float32), self.pc_range.device))
        least = 1 / get_world_size()  # one object over all ranks
        num_positives, num_noisy = totals.clamp(min=least)

        losses = {}
        layers = len(results['logits'])
        matches = match(self.assigner, results['logits'], results['codes'], targets, self.code_weights)
        for i, (labels, positive, true_codes) in enumerate(zip(*matches)):
            prefix = '' if i == layers - 1 else f'd{i}.'
            logits, codes = results['logits'][i], results['codes'][i]
            losses[f'{prefix}loss_cls'] = self.loss_cls(
                logits.flatten(0, 1), labels.flatten(), avg_factor=num_positives)
            losses[f'{prefix}loss_bbox'] = self._box_loss(codes.flatten(0, 1)[positive], true_codes, num_positives)
            if denoising is not None:
                assert self.denoising is not None, 'denoising queries come from it'
                kept = (totals[1] * self.denoising.positive_share).clamp(min=least)
                weight = self.denoising.loss_weight
                losses[f'{prefix}dn_loss_cls'] = weight * self.loss_cls(
                    results['dn_logits'][i], denoising.labels, avg_factor=kept)
                losses[f'{prefix}dn_loss_bbox'] = weight * self._box_loss(
                    results['dn_codes'][i], denoising.codes, num_noisy)
        if self.encoding.has_losses:
            losses.update(self._encoding_losses(results['image'], targets))
        return losses

    def predict(self, features: Tensor | Sequence[Tensor], data_samples: Sequence,
                tokens: Tensor | None = None) -> list[InstanceData]:
        """Boxes of the last decoder layer.

        Args:
            features: see ``forward``.
            data_samples: with meta information.
            tokens: see ``forward``.

        Returns:
            Per sample, best first: bboxes_3d (LiDARInstance3DBoxes, 9 dims), scores_3d, labels_3d.

        Raises:
            FloatingPointError: if predictions are not finite; names the samples.
        """
        metas = [sample.metainfo for sample in data_samples]
        results = self(features, metas, tokens=tokens)
        check_predictions([results[name].transpose(0, 1) for name in ('logits', 'codes')], metas)
        decoded = self.bbox_coder.decode(results['logits'][-1], results['codes'][-1])
        return [InstanceData(bboxes_3d=box_code.to_lidar_boxes(boxes), scores_3d=scores, labels_3d=labels)
                for boxes, scores, labels in decoded]

    def _embed_image(self, features: Tensor | Sequence[Tensor], metas: Sequence[dict],
                     chosen: Tensor | None) -> ImageTokens:
        """The image tokens; arguments as in ``forward``."""
        maps = as_maps(features)
        num_cameras, sizes = maps[0].shape[1], [(x.shape[3], x.shape[4]) for x in maps]
        cameras = self._read_cameras(metas, num_cameras, sizes, maps[0].device)
        parts = [x.flatten(3).transpose(2, 3).flatten(1, 2) for x in maps]
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if chosen is not None:
            cameras = cameras.select(chosen)
            tokens = tokens.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[-1]))
        content, own = self._embed_tokens(tokens, cameras, (num_cameras, *sizes[0]))
        position, absolute = own, self.encoding.embed_keys(cameras.rays)
        if absolute is not None:
            position = absolute if position is None else position + absolute
        image = ImageTokens(content, position, cameras.padding, self.encoding.prepare(cameras.rays, metas))
        if self.token_encoder is not None:
            image.geometry = self.token_encoder.prepare(cameras.rays, metas, own)
        return image

    def _read_cameras(self, metas: Sequence[dict], num_cameras: int, sizes: Sequence[tuple[int, int]],
                      device: torch.device) -> Cameras:
        """Those of feature maps of ``sizes`` (rows, columns)."""
        strides = as_strides(self.stride)
        if len(sizes) != len(strides):
            raise ValueError(f'{type(self).__name__} with stride={self.stride} takes {len(strides)} feature maps, not '
                             f'{len(sizes)}: position_level of the detector must name one level for each stride')
        lidar2img = stack_matrices(metas, 'lidar2img', num_cameras, 4)
        scales = []
        for (rows, columns), stride in zip(sizes, strides):
            rays = Rays.from_lidar2img(lidar2img, (rows, columns), stride, device, torch.float32)
            padding = padded_tokens(metas, num_cameras, (rows, columns), stride, device)
            focal = self._focal_lengths(metas, num_cameras, rows * columns, device) if self.position_embedding else None
            scales.append(Cameras(rays, focal, padding))
        return Cameras.concatenate(scales)

    def _focal_lengths(self, metas: Sequence[dict], cameras: int, per_camera: int,
                       device: torch.device) -> Tensor | None:
        """Of each token: (B, L, 2), pixels; negative where an image is flipped."""
        cam2img = stack_matrices(metas, 'cam2img', cameras, 3)
        return self._to_tokens(to_device(cam2img.diagonal(dim1=-2, dim2=-1)[..., :2].float(), device), per_camera)

    def _to_tokens(self, focal_lengths: Tensor, per_camera: int) -> Tensor:
        """Those of the cameras (B, N, 2) for their tokens: (B, L, 2)."""
        if self.compat:
            return focal_lengths.repeat(1, per_camera, 1)
        return focal_lengths.repeat_interleave(per_camera, dim=1)

    def _embed_tokens(self, tokens: Tensor, cameras: Cameras,
                      grid: tuple[int, int, int]) -> tuple[Tensor, Tensor | None]:
        """Features (B, L, in_channels) -> content and position (B, L, C) or None. Where no token is left out they are
        those of a ``grid`` (cameras, rows, columns)."""
        content = self.memory_embed(tokens)
        if not self.position_embedding:
            return F.layer_norm(content, content.shape[-1:]), None
        assert cameras.focal_lengths is not None, '_read_cameras reads them for the position embedding'
        coordinates = frustum_coordinates(cameras.rays, self.depths, self.position_range)
        content = self.spatial_alignment(content, cone_code(coordinates, cameras.focal_lengths))
        return content, self.featurized_pe(self.position_encoder(inverse_sigmoid(coordinates)), content)

    def _make_queries(self, metas: Sequence[dict], device: torch.device,
                      denoising: DenoisingQueries | None) -> Queries:
        """The queries of a batch: denoising, learned."""
        reference = self.reference_points.weight.expand(len(metas), -1, -1)
        mask = padding = None
        if denoising is not None:
            reference = torch.cat((denoising.reference_points, reference), dim=1)
            mask = denoising.mask
            if not self.compat:
                # Empty queries are hidden, so that a sample does not depend on the numbers of objects of the others.
                padding = F.pad(denoising.empty, (0, self.num_predictions))
        position = self._embed_points(reference)
        return Queries(torch.zeros_like(position), position, reference, mask, padding)

    def _embed_points(self, reference: Tensor) -> Tensor:
        """Additive position (..., C) of reference points (..., 3)."""
        return self.query_embedding(sine_embedding_3d(reference, self.embed_dims // 2))

    def _predict_codes(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """Box codes (..., B, Q, 10) of normed outputs (..., B, Q, C) at reference points (B, Q, 3).

        In float32: a step of bfloat16 in the logit of a centre is half a metre.
        """
        with torch.autocast(outputs.device.type, enabled=False):
            offset, others = self.reg_branches[0](outputs.float()).split((3, box_code.CODE_SIZE - 3), dim=-1)
            centre = self._to_metres((offset + inverse_sigmoid(reference)).sigmoid())
            return torch.cat((centre, others), dim=-1)

    def _to_metres(self, reference: Tensor) -> Tensor:
        lower, upper = self.pc_range.chunk(2)
        return reference * (upper - lower) + lower

    def _encoding_losses(self, image: ImageTokens, targets: Sequence[Targets]) -> dict[str, Tensor]:
        """The encoding's, each the mean over its terms of all ranks, as in ``loss``."""
        points = pad_sequence([target.boxes[:, :3] for target in targets], batch_first=True, padding_value=torch.nan)
        losses = self.encoding.losses(image.frame, image.content, points, image.padding)
        if self.token_encoder is not None:
            losses.update(self.token_encoder.losses(image.geometry, image.entered, points, image.padding))
        for name, terms in losses.items():
            number = reduce_mean(to_device(torch.tensor(float(terms.numel())), terms.device))
            losses[name] = terms.sum() / number.clamp(min=1 / get_world_size())
        return losses

    def _box_loss(self, codes: Tensor, true_codes: Tensor, avg_factor: Tensor) -> Tensor:
        """L1 loss of codes (n, 10) with code weights; an unknown velocity has weight 0."""
        known = true_codes.isfinite()
        return self.loss_bbox(codes, torch.where(known, true_codes, 0), known * self.code_weights,
                              avg_factor=avg_factor)
