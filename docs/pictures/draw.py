#!/usr/bin/env python
"""Make the pictures of the README.

    docs/pictures/draw.py ray docs/pictures/ray_to_rotation.png        # how a ray becomes a rotation
    docs/pictures/draw.py small PICTURE.png docs/pictures/NAME.jpg     # any picture of a tool, below 300 kB
"""
import argparse
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Polygon
from PIL import Image

LIMIT = 300_000  # bytes
WIDTH = 1600  # pixels
SURE, UNSURE, QUERY = '#1f5fbf', '#d9822b', '#2a8c4a'
DEPTH, DEVIATION, OBJECT = 18.0, 4.0, 15.0  # metres: of the image token, its uncertainty, and of the query
WAVES = (60.0, 24.0, 12.0)  # metres, examples
BANDS = 2 * np.pi / np.geomspace(3, 240, 16)  # rad/m, along the ray


def rotation(depth, deviation=0.0, bands=BANDS) -> np.ndarray:
    """The mean of exp(i w d) over a Gaussian of depths: (..., bands) complex; rope/README.md, 4, without the patch."""
    return np.exp(-0.5 * (deviation * bands) ** 2 + 1j * bands * np.asarray(depth)[..., None])


def draw_ray() -> Figure:
    figure = Figure((13, 4.6), dpi=100, layout='constrained')
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1, 1.15, 1.25))
    _scene(left.subplots())
    left.suptitle('1. An image token is a ray with a depth', fontsize=11)
    for axes, wave in zip(middle.subplots(3, 1), WAVES):
        _circle(axes, wave)
    middle.suptitle('2. Each band rotates a pair of channels', fontsize=11)
    _logits(right.subplots())
    right.suptitle('3. Attention then depends on relative position', fontsize=11)
    return figure


def _scene(axes) -> None:
    """From above."""
    axes.add_patch(Polygon([(0, 0), (-9, 26), (9, 26)], color='0.93'))
    axes.plot([-1.4, 1.4], [4, 4], color='0.4', lw=2)
    axes.text(1.8, 4, 'image', color='0.4', va='center', fontsize=9)
    axes.plot([0, 0], [0, 26], 'k--', lw=1)
    axes.plot(0, 0, 'k^', ms=9)
    axes.text(1, -0.6, 'camera', va='center', fontsize=9)
    axes.add_patch(Ellipse((0, DEPTH), 1.6, 2 * DEVIATION, color=UNSURE, alpha=0.35, lw=0))
    axes.plot(0, DEPTH, 'o', color=SURE, ms=7)
    axes.text(1.2, DEPTH, f'token: {DEPTH:g} m', color=SURE, va='center', fontsize=9)
    axes.text(1.2, DEPTH + 2.6, f'uncertainty: {DEVIATION:g} m', color=UNSURE, va='center', fontsize=9)
    axes.plot(0, OBJECT, 's', color=QUERY, ms=7)
    axes.text(1.2, OBJECT - 1, f'query: {OBJECT:g} m', color=QUERY, va='center', fontsize=9)
    axes.set(xlim=(-9, 11), ylim=(-2, 27), aspect='equal', xticks=[], ylabel='metres')
    axes.spines[['top', 'right', 'bottom']].set_visible(False)


def _circle(axes, wave: float) -> None:
    """The phases of one band as arrows in the complex plane."""
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color='0.8', lw=1)
    band = np.array([2 * np.pi / wave])
    for depth, deviation, colour, width in ((DEPTH, 0, SURE, 1.6), (DEPTH, DEVIATION, UNSURE, 3.2),
                                            (OBJECT, 0, QUERY, 1.6)):
        tip = rotation(depth, deviation, band)[0]
        axes.annotate('', (tip.real, tip.imag), (0, 0), arrowprops=dict(
            color=colour, width=width, headwidth=width + 5, headlength=7, shrink=0))
    length = abs(rotation(DEPTH, DEVIATION, band)[0])
    text = f'wavelength {wave:g} m\nuncertainty leaves\n{length:.0%} of the length'
    axes.text(1.35, 0, text, va='center', fontsize=9)
    axes.set(xlim=(-1.15, 4.4), ylim=(-1.15, 1.15), aspect='equal')
    axes.axis('off')


def _logits(axes) -> None:
    """The logit of equal contents over the depth of the query."""
    depths = np.linspace(0, 40, 801)
    for deviation, colour, name in ((0, SURE, 'depth known'), (DEVIATION, UNSURE, f'uncertain by {DEVIATION:g} m')):
        logit = (rotation(depths).conj() * rotation(DEPTH, deviation)).real.mean(-1)
        axes.plot(depths, logit, color=colour, lw=1.8, label=name)
    axes.axvline(OBJECT, color=QUERY, lw=1.2, ls=':')
    axes.text(OBJECT - 0.5, 0.97, 'query', color=QUERY, ha='right', va='top', fontsize=9)
    axes.axvline(DEPTH, color='0.6', lw=1, ls=':')
    axes.set(xlabel='position of the query along the ray, m', ylabel='logit of equal contents, no temperature',
             xlim=(0, 40))
    axes.legend(fontsize=9, frameon=False, loc='upper right')
    axes.spines[['top', 'right']].set_visible(False)


def shrink(source: Path, target: Path) -> None:
    """At most ``WIDTH`` pixels wide, as JPEG of the best quality below ``LIMIT``."""
    image = Image.open(source).convert('RGB')
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    for quality in range(92, 40, -4):
        image.save(target, quality=quality, optimize=True)
        if target.stat().st_size < LIMIT:
            return
    raise SystemExit(f'{source}: {target} stays above {LIMIT} bytes')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser('ray').add_argument('target', type=Path)
    small = commands.add_parser('small')
    small.add_argument('source', type=Path)
    small.add_argument('target', type=Path)
    args = parser.parse_args()
    if args.command == 'small':
        shrink(args.source, args.target)
    else:
        figure = draw_ray()
        FigureCanvasAgg(figure)
        figure.savefig(args.target)
    print(f'{args.target}: {args.target.stat().st_size / 1000:.0f} kB')


if __name__ == '__main__':
    main()
