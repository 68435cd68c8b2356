"""Curves of trainings, from the scalars that mmengine logs in a work dir."""
from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

KEYS = ('loss', 'loss_*', '*loss*', 'lr', '*/NDS', '*/mAP', '*/AMOTA')
_LAYER = re.compile(r'd\d+\.')  # losses of the decoder layers before the last
_POSITION = ('epoch', 'iter', 'step')


class Curves:
    """The scalars of a work dir; runs that were resumed are joined.

    Where a run goes on from a checkpoint, what the runs before it logged from there on is left out: all of its first
    epoch and later ones, or in trainings without epochs all from its first logged iteration. A run that starts anew in
    the same work dir thus replaces those before it. Scores of the validation stand at the iteration logged last before
    them, because mmengine logs their epoch only.

    Args:
        work_dir: holds ``<time of start>/vis_data/scalars.json``.

    Attributes:
        name: the folder's.
        values: key -> iterations and values, in order.
        resumed: the first iterations logged by runs that go on.

    Raises:
        FileNotFoundError: no scalars in the work dir.
        ValueError: a line of a log is not JSON; the last one may be cut off, of a training that is running.
    """

    def __init__(self, work_dir: str | Path) -> None:
        self.name = Path(work_dir).resolve().name
        logs = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
        if not logs:
            raise FileNotFoundError(f'{work_dir} has no */vis_data/scalars.json: not the work dir of a training')
        kept: list[tuple[int, int, dict]] = []  # iteration, epoch, scalars
        self.resumed: list[int] = []
        for log in logs:
            first = True
            for row in _rows(log):
                iteration, epoch = kept[-1][:2] if kept else (0, 0)
                if 'iter' not in row:  # of the validation
                    kept.append((max(iteration, row['step']), epoch, row))
                    continue
                if kept and (first or row['iter'] <= iteration):
                    kept = [old for old in kept if old[0] < row['iter'] and old[1] < row.get('epoch', 1)]
                    self.resumed = [old for old in self.resumed if old < row['iter']] + [row['iter']] * bool(kept)
                kept.append((row['iter'], row.get('epoch', 0), row))
                first = False
        self.values: dict[str, tuple[list[int], list[float]]] = {}
        for iteration, _, row in kept:
            for key in row.keys() - set(_POSITION):
                iterations, values = self.values.setdefault(key, ([], []))
                iterations.append(iteration)
                values.append(float(row[key]))

    def not_finite(self, key: str) -> list[int]:
        """Iterations where a value is infinite or NaN."""
        return [at for at, value in zip(*self.values.get(key, ((), ()))) if not math.isfinite(value)]


def _rows(log: Path) -> list[dict]:
    lines, rows = log.read_text(encoding='utf-8').splitlines(keepends=True), []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines) or line.endswith('\n'):
                raise ValueError(f'{log}, line {number} is not JSON: {error}') from error
    return rows


def chosen_keys(trainings: Sequence[Curves], patterns: Sequence[str] = KEYS) -> list[str]:
    """The logged keys that fit the patterns, in the order of these.

    Losses of decoder layers before the last are left out unless a pattern begins with their prefix.

    Raises:
        ValueError: a pattern, of those not of ``KEYS``, fits no key.
    """
    known = sorted({key for training in trainings for key in training.values})
    found: list[str] = []
    for pattern in patterns:
        fitting = [key for key in fnmatch.filter(known, pattern) if _LAYER.match(pattern) or not _LAYER.match(key)]
        if not fitting and pattern not in KEYS:
            raise ValueError(f'nothing logged fits {pattern!r}, but: {", ".join(known)}')
        found += [key for key in fitting if key not in found]
    if not found:
        raise ValueError(f'nothing logged fits {", ".join(patterns)}, but: {", ".join(known)}')
    return found


def draw_curves(trainings: Sequence[Curves], keys: Sequence[str]) -> Figure:
    """A panel for each key with a line for each training, over iterations.

    Dotted lines stand where a training was resumed, red crosses on the axis where a value is infinite or NaN.
    """
    columns = min(4, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(max(4.2 * columns, 6), 2.9 * rows + 0.2 * len(trainings) + 0.5), layout='constrained')
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    colours = [f'C{i % 10}' for i in range(len(trainings))]
    for panel, key in zip(panels, keys):
        for i, (training, colour) in enumerate(zip(trainings, colours)):
            iterations, values = training.values.get(key, ((), ()))
            panel.plot(iterations, values, color=colour, lw=1.5, ls=('-', '--')[i // 10 % 2],
                       marker='o' if len(values) < 20 else None, ms=4)
            bad = training.not_finite(key)
            if bad:
                panel.plot(bad, [0.02] * len(bad), 'rx', transform=panel.get_xaxis_transform())
            for iteration in training.resumed:
                panel.axvline(iteration, color=colour, lw=1, ls=':')
        panel.set_title(key, fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[['top', 'right']].set_visible(False)
        panel.tick_params(labelsize=8, labelbottom=True)
        panel.ticklabel_format(axis='y', scilimits=(-3, 4))
    for panel in panels[len(keys):]:
        panel.set_visible(False)
    for panel in panels[max(0, len(keys) - columns):len(keys)]:
        panel.set_xlabel('iteration', fontsize=9)
    lines = [Line2D([], [], color=colour, ls=('-', '--')[i // 10 % 2]) for i, colour in enumerate(colours)]
    names = [training.name for training in trainings]
    if any(training.resumed for training in trainings):
        lines, names = [*lines, Line2D([], [], color='0.4', lw=1, ls=':')], [*names, 'resumed']
    figure.legend(lines, names, loc='outside upper left', fontsize=9, frameon=False)
    return figure
