"""Curves and maps of groups: means over seeds with their 95 % intervals, thinned to what a figure can
show."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from comparison.groups import Group
from comparison.load import Floats, Run
from comparison.verdicts import CONFIDENCE

POINTS = 200  # of a curve
COLUMNS = 64  # of a map
CELLS = 400_000  # of all maps of a page together: then they are compressed to about a megabyte
CURVES = (
    "val/loss",
    "train/loss",
    "train/grad_norm",
    "val/batch_stats_gap",
    "train/lr",
    "train/tokens_per_s",
)


@dataclass
class Band:
    """A metric of a group against step, tokens and seconds: five arrays of one length, and the interval's
    ends, NaN where there are fewer than three."""

    step: Floats
    tokens: Floats
    seconds: Floats
    mean: Floats
    low: Floats
    high: Floats


def band(group: Group, metric: str) -> Band | None:
    """The mean over the runs that have the metric at a step; None where no run has it."""
    runs = [run for run in group.runs if metric in run.metrics]
    steps = thinned(runs, metric, POINTS)
    if not len(steps):
        return None
    values = np.stack([at(run, metric, steps) for run in runs])  # (runs, steps)
    axes = {
        axis: mean(np.stack([run.axes[axis][positions(run.axes["step"], steps)] for run in runs]))
        for axis in ("tokens", "seconds")
    }
    middle, n = mean(values), np.isfinite(values).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of one seed there is no deviation: NaN
        half = stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * np.nanstd(values, axis=0, ddof=1) / np.sqrt(n)
    half[n < 3] = np.nan  # of two it is wider than any figure
    return Band(steps, axes["tokens"], axes["seconds"], middle, middle - half, middle + half)


@dataclass
class Map:
    """A statistic of each block against the step, of several groups.

    Attributes:
        name: as ``act.rms/*.mlp``.
        steps: (columns,)
        blocks: the blocks' numbers, as 03.
        values: of each group (blocks, columns), the mean over its seeds; NaN where there is none.
    """

    name: str
    steps: Floats
    blocks: list[str]
    values: list[Floats]


def maps(groups: Sequence[Group]) -> list[Map]:
    """Of every statistic that was logged block by block."""
    names: dict[str, dict[str, str]] = {}  # act.rms/*.mlp -> block -> act.rms/03.mlp
    for metric in sorted({name for group in groups for run in group.runs for name in run.metrics}):
        kind, _, site = metric.partition("/")
        block, dot, rest = site.partition(".")
        if block.isdigit():
            names.setdefault(f"{kind}/*{dot}{rest}", {})[block] = metric
    cells = len(groups) * sum(len(blocks) for blocks in names.values())
    columns = int(np.clip(CELLS // max(1, cells), 8, COLUMNS))
    found = []
    for name, blocks in names.items():
        runs = [run for group in groups for run in group.runs]
        steps = thinned(runs, next(iter(blocks.values())), columns)
        values = []
        for group in groups:
            layers = [
                np.stack([at(run, metric, steps) for run in group.runs]) for metric in blocks.values()
            ]  # each (runs, columns)
            values.append(np.stack([mean(layer) for layer in layers]))
        found.append(Map(name, steps, list(blocks), values))
    return found


def thinned(runs: Sequence[Run], metric: str, most: int) -> Floats:
    """The steps at which runs have a metric, spread evenly over them where there are more than ``most``."""
    some = [run.axes["step"][run.metrics[metric][0]] for run in runs if metric in run.metrics]
    steps = np.unique(np.concatenate(some)) if some else np.zeros(0)
    return steps[np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int))]


def positions(sorted_values: Floats, wanted: Floats) -> NDArray[np.intp]:
    """Of each wanted value, the index of the last that is not above it; at least 0."""
    return np.maximum(np.searchsorted(sorted_values, wanted, side="right") - 1, 0)


def at(run: Run, metric: str, steps: Floats) -> Floats:
    """The metric at each of ``steps``; NaN where the run has none there."""
    if metric not in run.metrics:
        return np.full(len(steps), np.nan)
    rows, values = run.metrics[metric]
    own = run.axes["step"][rows]
    index = positions(own, steps)
    return np.where((own[index] == steps) & np.isfinite(values[index]), values[index], np.nan)


def mean(values: Floats) -> Floats:
    """Over the first axis, of what is there; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
        result: Floats = np.nanmean(values, axis=0)
    return result
