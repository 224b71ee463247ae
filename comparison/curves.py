"""Curves and maps of groups: means over seeds with 95 % intervals, thinned to what a figure can show."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from comparison.groups import Group
from comparison.load import Floats, Run
from comparison.verdicts import CONFIDENCE

POINTS = 200  # in a curve, at most
COLUMNS = 64  # in a map, at most
CELLS = 400_000  # in all maps of a page; compressed they take about a megabyte
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
    """A metric of a group by step. The ends of its interval, low and high, are NaN for fewer than 3 seeds."""

    step: Floats
    tokens: Floats
    seconds: Floats
    mean: Floats
    low: Floats
    high: Floats


def band(group: Group, metric: str) -> Band | None:
    """Return the mean over the runs that have the metric at a step; None if no run has it. A run that
    ended earlier enters the means of tokens and seconds with its last values."""
    runs = [run for run in group.runs if metric in run.metrics]
    steps = thinned_steps(runs, metric, POINTS)
    if not len(steps):
        return None
    values = np.stack([values_at(steps, *run.curve(metric)) for run in runs])  # (runs, steps)
    tokens, seconds = (
        np.mean([run.axes[axis][last_rows(run.axes["step"], steps)] for run in runs], axis=0)
        for axis in ("tokens", "seconds")
    )
    middle, n = mean(values), np.isfinite(values).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the deviation of one seed is NaN
        half = stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * np.nanstd(values, axis=0, ddof=1) / np.sqrt(n)
    half[n < 3] = np.nan  # the interval of two seeds is wider than any figure
    return Band(steps, tokens, seconds, middle, middle - half, middle + half)


@dataclass
class Map:
    """A statistic of each block, for several groups."""

    name: str  # for example act.rms/*.mlp
    steps: Floats  # (columns,)
    blocks: list[str]  # block numbers as two-digit strings, for example "03"
    values: list[Floats]  # an array (blocks, columns) for each group; NaN where no seed has a value


def maps(groups: Sequence[Group]) -> list[Map]:
    """Return a map of every statistic that was logged block by block."""
    runs = [run for group in groups for run in group.runs]
    names: dict[str, dict[str, str]] = defaultdict(dict)  # act.rms/*.mlp -> block -> act.rms/03.mlp
    for metric in sorted({name for run in runs for name in run.metrics}):
        kind, _, site = metric.partition("/")
        block, dot, rest = site.partition(".")
        if block.isdigit():
            names[f"{kind}/*{dot}{rest}"][block] = metric
    cells = len(groups) * sum(len(blocks) for blocks in names.values())
    columns = int(np.clip(CELLS // max(1, cells), 8, COLUMNS))
    result = []
    for name, blocks in names.items():
        steps = thinned_steps(runs, next(iter(blocks.values())), columns)
        values = []
        for group in groups:
            layers = [[values_at(steps, *run.curve(m)) for run in group.runs] for m in blocks.values()]
            values.append(np.stack([mean(np.stack(layer)) for layer in layers]))
        result.append(Map(name, steps, list(blocks), values))
    return result


def thinned_steps(runs: Sequence[Run], metric: str, limit: int) -> Floats:
    """Return the steps at which runs have a metric: all these steps, or ``limit`` evenly spread ones."""
    steps = np.unique(np.concatenate([np.zeros(0), *(run.curve(metric)[0] for run in runs)]))
    return steps[np.unique(np.linspace(0, len(steps) - 1, min(limit, len(steps))).round().astype(int))]


def last_rows(logged: Floats, steps: Floats) -> NDArray[np.intp]:
    """Return, for each of ``steps``, the index of the last logged step that is not later; at least 0."""
    return np.maximum(np.searchsorted(logged, steps, side="right") - 1, 0)


def values_at(steps: Floats, logged: Floats, values: Floats) -> Floats:
    """Return the values that were logged at ``steps``; NaN at a step without a value."""
    if not len(logged):
        return np.full(len(steps), np.nan)
    index = last_rows(logged, steps)
    return np.where(logged[index] == steps, values[index], np.nan)


def mean(values: Floats) -> Floats:
    """Return the mean over the first axis without NaN; NaN where all values are NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
        result: Floats = np.nanmean(values, axis=0)
    return result
