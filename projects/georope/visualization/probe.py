"""What a model sees of one frame: its images, its image tokens and, once trained, where its queries look."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from mmengine.dataset import BaseDataset, pseudo_collate
from torch import Tensor, nn
from torch.nn import functional as F

from georope.datasets.info_file import load_infos
from georope.models.cameras import stack_matrices
from georope.rope import Rays, RotaryAttention, Rotation, Transform
from georope.visualization.boxes import Boxes
from georope.visualization.info import ground_truth


@dataclasses.dataclass
class Probe:
    """One frame. L = cameras * rows * columns image tokens, in this order.

    Attributes:
        name: sample token.
        images: N images (h, w, 3) uint8, BGR, as the network gets them but for the padding.
        lidar2img: (N, 4, 4) float64, LiDAR frame -> pixels of these images.
        cam_names: N names.
        grid: cameras, rows, columns of the feature map.
        stride: pixels per cell.
        rays: of all tokens.
        num_heads: of the decoder.
        channels: C of tokens and queries.
        reference: (Q, 3) where queries start, metres: the learned ones, then StreamPETR's in a scene's first frame.
        truth: annotated boxes, None where there are none.
        chosen: (K, ) indices of the tokens that a 2D head let pass, None for all.
        content: (layers, K or L, C) what the tokens hold in each decoder layer; None without a forward pass.
        attention: (layers, Q, K or L), the mean over heads of the weights of cross-attention; likewise.
        results: the head's output; likewise.
    """

    name: str
    images: list[np.ndarray]
    lidar2img: np.ndarray
    cam_names: list[str]
    grid: tuple[int, int, int]
    stride: int
    rays: Rays
    num_heads: int
    channels: int
    reference: Tensor
    truth: Boxes | None = None
    chosen: Tensor | None = None
    content: Tensor | None = None
    attention: Tensor | None = None
    results: dict | None = None

    def find_token(self, camera: str, u: float, v: float) -> int:
        """The index of the token whose patch holds a pixel of a camera's image.

        Raises:
            ValueError: no such camera, or the pixel is not in its image.
        """
        if camera not in self.cam_names:
            raise ValueError(f'sample {self.name}: no camera {camera!r}, it has {self.cam_names}')
        index = self.cam_names.index(camera)
        height, width = self.images[index].shape[:2]
        if not (0 <= u < width and 0 <= v < height):
            raise ValueError(f'sample {self.name}, {camera}: pixel ({u:g}, {v:g}) is outside the image; as the network '
                             f'gets it, it is {width} wide and {height} high')
        _, rows, columns = self.grid
        return (index * rows + int(v // self.stride)) * columns + int(u // self.stride)

    def token_content(self, token: int, layer: int) -> Tensor:
        """(C,) features of an image token; zeros without a forward pass, since an untrained encoding does not use them.

        Raises:
            ValueError: the 2D head left out the token.
        """
        if self.content is None:
            return self.rays.directions.new_zeros(self.channels)
        if self.chosen is None:
            return self.content[layer, token]
        index = (self.chosen == token).nonzero()
        if not len(index):
            raise ValueError(f'sample {self.name}: the 2D head left out image token {token}, choose another one')
        return self.content[layer, index[0, 0]]

    def attention_maps(self, query: int) -> np.ndarray:
        """(layers, N, rows, columns): the weights of one query, which sum to 1 in each layer."""
        weights = self.attention[:, query]
        if self.chosen is not None:
            total = int(np.prod(self.grid))
            weights = weights.new_zeros(len(weights), total).index_copy(1, self.chosen, weights)
        return weights.unflatten(1, self.grid).cpu().numpy()


def find_sample(dataset: BaseDataset, sample: str) -> int:
    """The index of a frame in a dataset, by its sample token or by that index itself.

    Raises:
        ValueError: there is no such frame.
    """
    for index in range(len(dataset)):
        if dataset.get_data_info(index)['token'] == sample:
            return index
    if not sample.isdecimal():
        raise ValueError(f'{dataset.ann_file} has no sample {sample!r}')
    if int(sample) >= len(dataset):
        raise ValueError(f'{dataset.ann_file} has samples 0 to {len(dataset) - 1}, no {sample}')
    return int(sample)


def annotated_boxes(ann_file: str, sample_token: str) -> Boxes | None:
    """The boxes of a frame of an info file, see ``info.ground_truth``; None where it has no annotations."""
    infos = load_infos(ann_file)
    entry = next(entry for entry in infos['data_list'] if entry['token'] == sample_token)
    return ground_truth(entry, infos['metainfo']['categories']) if 'instances' in entry else None


@torch.no_grad()
def probe(model: nn.Module, data: dict, truth: Boxes | None = None, run: bool = True) -> Probe:
    """Look at one frame with a detector in evaluation mode; StreamPETR sees it as the first of a scene.

    Args:
        model: ``PETR`` or ``StreamPETR``.
        data: an item of its dataset, with ``inputs['img']`` (N, 3, h, w) and its data sample.
        truth: annotated boxes, to be drawn.
        run: whether to run the model; without weights there is nothing to see.
    """
    model.eval()
    head = model.pts_bbox_head
    if not isinstance(head.stride, int):
        raise ValueError(f'pictures of geometry and attention show one feature map, not those of stride={head.stride}')
    sample = data['data_samples']
    images = [np.ascontiguousarray(image) for image in data['inputs']['img'].permute(0, 2, 3, 1).byte().cpu().numpy()]
    batch = model.data_preprocessor(pseudo_collate([data]))
    imgs = batch['inputs']['imgs']
    grid = (len(images), *(-(-size // head.stride) for size in imgs.shape[-2:]))
    lidar2img = stack_matrices([sample.metainfo], 'lidar2img', len(images), 4)
    rays = Rays.from_lidar2img(lidar2img, grid[1:], head.stride, imgs.device, torch.float32)
    lower, upper = head.pc_range.chunk(2)
    starts = [head.reference_points.weight]
    if hasattr(head, 'pseudo_reference_points'):
        starts.append(head.pseudo_reference_points.weight)
    reference = torch.cat(starts) * (upper - lower) + lower
    names = list(sample.get('cam_names', [f'camera {i}' for i in range(len(images))]))
    seen = Probe(sample.token, images, lidar2img[0].cpu().numpy(), names, grid, head.stride, rays,
                 head.transformer['decoder'].num_heads, head.query_embedding[-1].out_features, reference, truth)
    if not run:
        return seen

    contents, weights, chosen = [], [], []

    def record_attention(module: RotaryAttention, args: Sequence, kwargs: dict) -> None:
        contents.append(args[2][0])
        weights.append(attention_weights(module, *args, **kwargs)[0].mean(0))

    def record_tokens(module: nn.Module, args: Sequence, kwargs: dict) -> None:
        chosen.append(kwargs.get('tokens'))

    hooks = [layer.attentions[1].attn.register_forward_pre_hook(record_attention, with_kwargs=True)
             for layer in head.transformer['decoder'].layers]
    hooks.append(head.register_forward_pre_hook(record_tokens, with_kwargs=True))
    try:
        seen.results = model(**batch, mode='tensor')
    finally:
        for hook in hooks:
            hook.remove()
    seen.content, seen.attention = torch.stack(contents), torch.stack(weights)
    seen.chosen = None if chosen[0] is None else chosen[0][0]
    return seen


def attention_weights(attention: RotaryAttention, query: Tensor, key: Tensor, value: Tensor,
                      query_rotation: Rotation | None = None, key_rotation: Rotation | Transform | None = None,
                      key_padding_mask: Tensor | None = None) -> Tensor:
    """What ``RotaryAttention.forward`` weighs values with: (B, heads, Q, L). Its kernels do not tell."""
    q, k = (F.linear(x, weight, bias).unflatten(-1, (attention.num_heads, -1)) for x, weight, bias in zip(
        (query, key), attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)))
    q = q if query_rotation is None else query_rotation.apply(q)
    k = k if key_rotation is None else key_rotation.apply(k, tempered=True)
    logits = torch.einsum('bqhc,blhc->bhql', q, k) / q.shape[-1] ** 0.5
    if key_padding_mask is not None:
        logits = logits.masked_fill(key_padding_mask[:, None, None], -torch.inf)
    return logits.softmax(-1)
