"""Pictures of an encoding: assumed positions of image tokens, response to positions, attention of queries."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mmengine.structures import InstanceData
from torch import Tensor

from georope.models import box_code
from georope.rope import PositionEncoding, Rays
from georope.visualization.boxes import Boxes
from georope.visualization.draw import TEXT, draw_frame
from georope.visualization.probe import Probe
from georope.visualization.strokes import Stroke

# BGR, told apart on dark images; tokens beyond take them again.
TOKEN_COLOURS = ((80, 220, 255), (255, 170, 90), (200, 130, 255), (140, 230, 120), (110, 140, 255), (230, 220, 110))
CIRCLE = np.linspace(0, 2 * np.pi, 33)
FLAT = 1e-5  # a response that varies less knows nothing of positions


@dataclasses.dataclass
class TokenSupport:
    """The assumed position of an image token along its ray: M different hypotheses, see ``georope.rope.Support``."""

    weights: np.ndarray
    depths: np.ndarray
    spreads: np.ndarray
    uniform: bool = False
    patch: bool = False


@torch.no_grad()
def support(encoding: PositionEncoding, rays: Rays, token: int, content: Tensor, layer: int = 0) -> TokenSupport | None:
    """The support of an image token in a decoder layer, None for encodings without depths.

    Args:
        encoding: any of ``georope.rope``, or one's own.
        rays: of all tokens of one sample.
        token: index of the token.
        content: (C,) features of the token in that layer.
    """
    found = encoding.support(rays.select(torch.tensor([[token]], device=content.device)), content[None, None], layer)
    if found is None:
        return None
    weights, *positions = (x[0, 0].double().cpu().numpy() for x in (found.weights, found.depths, found.spreads))
    # Heads that share a depth are one hypothesis.
    (depths, spreads), same = np.unique(np.stack(positions), axis=1, return_inverse=True)
    return TokenSupport(np.bincount(same.ravel(), weights), depths, spreads, found.uniform, found.patch)


def token_strokes(rays: Rays, token: int, where: TokenSupport | None, colour: tuple[int, int, int], label: str,
                  reach: float) -> list[Stroke]:
    """A token's ray, patch and support.

    The ray is thin and ends ``reach`` metres from the camera, seen from above. A dot is a hypothesis, the larger the
    likelier. Around a Gaussian lies its ellipse of one standard deviation, along the ray and across the patch; along
    a uniform interval a thick line. The small square is the patch at the first hypothesis.
    """
    origin, direction, (along_u, along_v) = (
        x[0, token].double().cpu().numpy() for x in (rays.origins, rays.directions, rays.footprints))

    def at(depths, u=0., v=0.) -> np.ndarray:
        """Points (n, 3) at depths (n,) and pixels beside the token's own."""
        depths, u, v = (np.asarray(x, dtype=np.float64).reshape(-1, 1) for x in (depths, u, v))
        return origin + depths * (direction + u * along_u + v * along_v)

    half = (3 * rays.patch_variance) ** 0.5
    square = at(5. if where is None else where.depths[0], half * np.array([-1, 1, 1, -1, -1]),
                half * np.array([-1, -1, 1, 1, -1]))
    strokes = [Stroke(square, colour)]
    for weight, depth, spread in () if where is None else zip(where.weights, where.depths, where.spreads):
        if where.uniform and spread:
            strokes.append(Stroke(at([depth - spread, depth + spread]), colour, 4))
        elif spread:
            depths = np.maximum(depth + spread * np.cos(CIRCLE), 0.05)
            across = np.sqrt(rays.patch_variance * (depth ** 2 + spread ** 2)) * np.sin(CIRCLE) / depths
            strokes.append(Stroke(at(depths, across), colour))
        share = f', {weight:.0%}' if where.patch and len(where.depths) > 1 else ''
        strokes.append(Stroke(at(depth), colour, round(3 + 6 * weight ** 0.5), f'{depth:.1f} m{share}'))
    return [*strokes, Stroke(at([0.3, reach / np.linalg.norm(direction[:2])]), colour, 1, label)]


def draw_support(seen: Probe, encoding: PositionEncoding, tokens: Mapping[str, int], layer: int = 0,
                 bev_range: float = 55., title: str = '') -> np.ndarray:
    """The supports of tokens in one decoder layer, in all cameras and from above, see ``token_strokes``.

    Args:
        seen: the frame.
        tokens: {what to call it: its index}.
        layer: decoder layer.
        bev_range: metres from the LiDAR to the edge of the bird's-eye view.

    Returns:
        (H, W, 3) uint8, BGR.
    """
    strokes = []
    for i, (name, token) in enumerate(tokens.items()):
        where = support(encoding, seen.rays, token, seen.token_content(token, layer), layer)
        strokes += token_strokes(seen.rays, token, where, TOKEN_COLOURS[i % len(TOKEN_COLOURS)], name.split(':')[0],
                                 0.92 * bev_range)
    return draw_frame(seen.images, seen.lidar2img, None, seen.truth, seen.cam_names, title, bev_range=bev_range,
                      strokes=strokes)


def draw_depths(seen: Probe, encoding: PositionEncoding, tokens: Mapping[str, int], layers: int,
                title: str = '') -> np.ndarray:
    """Density of depth of image tokens: a row for each, with a curve for each decoder layer, the first on top.

    A known depth is a narrow peak. Curves of a token share one scale. Returns (H, W, 3) uint8, BGR.
    """
    supports = {token: [support(encoding, seen.rays, token, seen.token_content(token, layer), layer)
                        for layer in range(layers)] for token in tokens.values()}
    every = [where for layers_of_token in supports.values() for where in layers_of_token]
    near = 0.5 * min(where.depths.min() for where in every)
    far = 1.1 * max((where.depths + 2 * where.spreads).max() for where in every)
    depths = np.geomspace(near, far, 500)
    figure = Figure((9, 1 + 2.2 * len(tokens)), dpi=100, layout='constrained')
    figure.suptitle(title, fontsize=10)
    for axes, (name, token) in zip(figure.subplots(len(tokens), 1, sharex=True, squeeze=False)[:, 0], tokens.items()):
        curves = [_density(where, depths) for where in supports[token]]
        top = max(curve.max() for curve in curves)
        for layer, curve in enumerate(curves):
            base, colour = layers - 1 - layer, f'C{layer % 10}'
            axes.fill_between(depths, base, base + 0.9 * curve / top, color=colour, alpha=0.35, linewidth=0)
            axes.plot(depths, base + 0.9 * curve / top, color=colour, linewidth=1.2)
        axes.set_yticks(range(layers), [f'layer {layers - 1 - i}' for i in range(layers)])
        axes.set_xscale('log')
        axes.set_xticks(ticks := [x for x in (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320) if near <= x <= far],
                        [f'{tick:g}' for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis='x', alpha=0.3)
        axes.set_title(name, fontsize=9, loc='left')
    axes.set_xlabel('depth along the optical axis, m (density per log depth)')
    return _pixels(figure)


def _density(where: TokenSupport, depths: np.ndarray) -> np.ndarray:
    """Of log depth, at ``depths``; a known depth is as narrow as can be seen."""
    total = np.zeros_like(depths)
    for weight, mean, spread in zip(where.weights, where.depths, where.spreads):
        if where.uniform and spread:
            total += weight * (np.abs(depths - mean) <= spread) / (2 * spread) * depths
        else:
            spread = max(spread, 0.01 * mean)
            total += weight * np.exp(-0.5 * ((depths - mean) / spread) ** 2) / (spread * np.sqrt(2 * np.pi)) * depths
    return total


@torch.no_grad()
def response(encoding: PositionEncoding, rays: Rays, token: int, content: Tensor, points: Tensor, num_heads: int,
             layer: int = 0) -> Tensor:
    """The effect of positions alone: the logits between an image token and queries at points if all have the same
    content, 1 + 0i in every pair. A query exactly at the position of a token of known depth has logit 1.

    Args:
        encoding: any of ``georope.rope``; additive positions play no part.
        token: index of the token.
        content: (C,) its features, which predictors see.
        points: (n, 3), metres, LiDAR frame.

    Returns:
        (num_heads, n).
    """
    prepared = encoding.prepare(rays.select(torch.tensor([[token]], device=points.device)))
    keys = encoding.rotate_keys(prepared, content[None, None], layer)
    queries = encoding.rotate_queries(points[None])
    dims = len(content) // num_heads
    unit = points.new_zeros(1, len(points), num_heads, dims)
    unit[..., ::2] = 1
    key = unit[:, :1] if keys is None else keys.apply(unit[:, :1], tempered=True)
    query = unit if queries is None else queries.apply(unit)
    return (query * key).sum(-1)[0].T * (2 / dims)


def draw_response(seen: Probe, encodings: Mapping[str, PositionEncoding], token: int, bev_range: float = 55.,
                  height: float = -1., head: int | None = None, size: int = 161, layers: Mapping[str, int] = {},
                  title: str = '') -> np.ndarray:
    """The ``response`` of a token's key to queries over a level plane, a column for each encoding: the mean over heads
    above, one head below.

    Args:
        seen: the frame.
        encodings: {name: encoding}. Those named in ``layers`` see what the token holds in that decoder layer, the
            others zeros, as at the start of training.
        token: index of the token.
        bev_range: metres from the LiDAR to the edge.
        height: of the plane above the LiDAR, metres.
        head: the one below; None for the one in the middle (of four anchors the third).
        size: queries along an edge.

    Returns:
        (H, W, 3) uint8, BGR.
    """
    head = seen.num_heads // 2 if head is None else head
    if not 0 <= head < seen.num_heads:
        raise ValueError(f'head {head}: the decoder has heads 0 to {seen.num_heads - 1}')
    ticks = torch.linspace(-bev_range, bev_range, size)
    y, x = torch.meshgrid(ticks, ticks, indexing='ij')
    points = torch.stack((x, y, torch.full_like(x, height)), dim=-1).flatten(0, 1).to(seen.rays.origins)
    zeros = seen.rays.origins.new_zeros(seen.channels)
    contents = {name: (seen.token_content(token, layers[name]), layers[name]) if name in layers else (zeros, 0)
                for name in encodings}
    found = {name: response(encoding, seen.rays, token, contents[name][0], points, seen.num_heads, contents[name][1])
             .unflatten(1, (size, size)).cpu().numpy() for name, encoding in encodings.items()}
    rows = {'mean of heads': {name: values.mean(0) for name, values in found.items()},
            f'head {head}': {name: values[head] for name, values in found.items()}}
    origin, direction = (x[0, token].cpu().numpy() for x in (seen.rays.origins, seen.rays.directions))
    far = origin + direction * 2 * bev_range / np.linalg.norm(direction[:2])

    figure = Figure((3.1 * len(encodings) + 0.9, 6.6), dpi=100, layout='constrained')
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(2, len(encodings), sharex=True, sharey=True, squeeze=False)
    for line, (row, values) in zip(grid, rows.items()):
        # Each row has a scale of its own: a mean of heads with other anchors is small everywhere.
        limit = max((np.abs(x).max() for x in values.values() if np.ptp(x) > FLAT), default=1.)
        for axes, (name, value) in zip(line, values.items()):
            where = support(encodings[name], seen.rays, token, *contents[name])
            if np.ptp(value) > FLAT:
                drawn = axes.imshow(value, 'RdBu_r', origin='lower', vmin=-limit, vmax=limit,
                                    extent=(-bev_range, bev_range, -bev_range, bev_range))
            else:
                axes.set_facecolor('0.85')
                axes.text(0, 0.3 * bev_range, f'{value.mean():.2f} everywhere:\nblind to where queries are',
                          ha='center', fontsize=9)
                axes.set_aspect('equal')
            axes.plot(*zip(origin[:2], far[:2]), 'k--', linewidth=0.6)
            if where is not None:
                dots = origin + where.depths[:, None] * direction
                axes.scatter(dots[:, 0], dots[:, 1], s=4 + 40 * where.weights, facecolor='none', edgecolor='k',
                             linewidth=0.9)
            axes.set(xlim=(-bev_range, bev_range), ylim=(-bev_range, bev_range))
            if row.startswith('mean'):
                axes.set_title(name, fontsize=10)
        line[0].set_ylabel(f'{row}\ny (forward), m')
        if any(np.ptp(x) > FLAT for x in values.values()):
            figure.colorbar(drawn, ax=line, shrink=0.8, label='logit, 1 = same position, no uncertainty')
    for axes in grid[-1]:
        axes.set_xlabel('x (right), m')
    return _pixels(figure)


def draw_attention(seen: Probe, query: int, layer: int, classes: Sequence[str], bev_range: float = 55.,
                   title: str = '') -> np.ndarray:
    """Where a query looks in one decoder layer (the mean over heads), its reference point, and the box it predicts.

    Args:
        seen: a frame the model has run on.
        query: index among the queries.
        layer: decoder layer.
        classes: names of the classes.

    Returns:
        (H, W, 3) uint8, BGR.

    Raises:
        ValueError: there is no such query.
    """
    logits, codes = seen.results['logits'][layer, 0], seen.results['codes'][layer, 0]
    if not 0 <= query < len(logits):
        raise ValueError(f'query {query}: the model has queries 0 to {len(logits) - 1}')
    maps = seen.attention_maps(query)[layer]
    images = [_heat(image, weights / maps.max(), seen.stride) for image, weights in zip(seen.images, maps)]
    score, label = logits[query].sigmoid().max(0)
    box = Boxes.from_instances(InstanceData(
        bboxes_3d=box_code.to_lidar_boxes(box_code.decode(codes[query:query + 1])), scores_3d=score[None],
        labels_3d=label[None]), classes)
    reference = Stroke(seen.reference[query:query + 1].double().cpu().numpy(), TEXT, 7, 'reference')
    shares = sorted(zip(maps.sum((1, 2)), seen.cam_names), reverse=True)
    told = ', '.join(f'{name} {share:.0%}' for share, name in shares if share >= 0.005)
    return draw_frame(images, seen.lidar2img, box, seen.truth, seen.cam_names,
                      f'{title}   attention: {told}; brightest token {maps.max():.1%}', bev_range=bev_range,
                      strokes=[reference])


def _heat(image: np.ndarray, weights: np.ndarray, stride: int) -> np.ndarray:
    """Brighten an image by weights (rows, columns), 0 to 1; cells of padding are cut off."""
    height, width = image.shape[:2]
    wide = cv2.resize(weights.astype(np.float32), None, fx=stride, fy=stride, interpolation=cv2.INTER_LINEAR)
    wide = np.clip(wide[:height, :width], 0, 1)[..., None]
    colours = cv2.applyColorMap(np.uint8(255 * wide[..., 0] ** 0.5), cv2.COLORMAP_INFERNO)
    share = 0.85 * wide ** 0.5
    return np.uint8(0.6 * image * (1 - share) + colours * share)


def _pixels(figure: Figure) -> np.ndarray:
    """(H, W, 3) uint8, BGR."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return cv2.cvtColor(np.asarray(canvas.buffer_rgba()), cv2.COLOR_RGBA2BGR)
