"""Curves of scores against the severity of a perturbation."""
import math
from collections.abc import Sequence

from matplotlib.figure import Figure  # no pyplot: no window, no display

from georope.datasets.transforms.perturb import KINDS
from georope.evaluation.robustness import Scores, curve
from georope.files import written_beside


def plot_severity(scores: Scores, models: dict[str, str], kinds: dict[str, Sequence[float]], seed: int,
                  path: str) -> None:
    """Curves as PNG: a column per kind, a row per measure, a line per model; arguments as
    :func:`georope.evaluation.robustness.severity_table`."""
    measures = scores.measures(list(models.values()))
    figure = Figure(figsize=(3.2 * len(kinds) + 0.6, 2.5 * len(measures) + 0.8), layout='constrained')
    grid = figure.subplots(len(measures), len(kinds), squeeze=False, sharex='col', sharey='row')
    for column, (kind, severities) in enumerate(kinds.items()):
        for row, measure in enumerate(measures):
            axes = grid[row, column]
            for name, model in models.items():
                settings = curve(kind, severities, seed, model)
                values = [scores.value(setting, measure) for setting in settings]
                axes.plot([setting.severity for setting in settings],
                          [math.nan if value is None else value for value in values], marker='o', ms=4, label=name)
            axes.grid(alpha=0.3)
        grid[0, column].set_title(kind.replace('_', ' '))
        grid[-1, column].set_xlabel(KINDS[kind].unit)
    for row, measure in enumerate(measures):
        grid[row, 0].set_ylabel(measure)
        grid[row, 0].set_ylim(bottom=0)  # after all curves: it ends the automatic range of the whole row
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=len(models))
    with written_beside(path) as beside:
        figure.savefig(beside, format='png', dpi=120)
