"""Curves and maps of groups, as the rows of figures: means over seeds with 95 % intervals, thinned to what a
figure can show."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from comparison.groups import Group
from comparison.load import Floats, Run
from comparison.verdicts import CONFIDENCE

POINTS = 200  # the most points in a curve
COLUMNS = 64  # the most columns in a map
CELLS = 400_000  # the most cells in all maps of a page: about a megabyte, compressed
Rows = list[dict[str, Any]]
Groups = Mapping[str, Group]  # by title


def curves(groups: Groups, metric: str) -> Rows:
    """Return rows with group, step, tokens, seconds, operations, mean, low and high: the metric's mean over
    the seeds that have it at that step, and its interval (None for fewer than 3 seeds). A run that ended
    earlier enters the means of tokens and seconds with its last values."""
    rows = []
    for title, group in groups.items():
        by_seed = runs_by_seed([run for run in group.runs if metric in run.metrics])
        runs = [run for runs_of_seed in by_seed for run in runs_of_seed]
        steps = thinned_steps(runs, metric, POINTS)
        if not len(steps):
            continue
        values = np.ma.stack([mean_of_all(table(each, metric, steps)) for each in by_seed])
        mean, n = values.mean(axis=0), values.count(axis=0)
        half_width = stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * values.std(axis=0, ddof=1) / np.sqrt(n)
        half_width[n < 3] = np.ma.masked  # the interval of two seeds is wider than any figure
        columns = {"step": steps}
        for axis in ("tokens", "seconds"):
            positions = [np.interp(steps, run.axes["step"], run.axes[axis]) for run in runs]
            columns[axis] = np.mean(positions, axis=0)
        columns["operations"] = columns["tokens"] * np.mean([*map(operations_per_token, runs)])
        columns |= {"mean": mean, "low": mean - half_width, "high": mean + half_width}
        points = zip(*(np.ma.filled(column, np.nan) for column in columns.values()), strict=True)
        rows += [{"group": title} | dict(zip(columns, map(rounded, p), strict=True)) for p in points]
    return rows


def runs_by_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each seed: one, or in a mean over a key one at each of its values; without the seeds
    that lack a value."""
    by_seed: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_seed[run.seed].append(run)
    count = len({run.group for run in runs})
    return [each for each in by_seed.values() if len(each) == count]


def mean_of_all(values: np.ma.MaskedArray[Any, Any]) -> np.ma.MaskedArray[Any, Any]:
    """Return the mean over the rows, masked where a row has no value."""
    return np.ma.array(values.mean(axis=0), mask=np.ma.getmaskarray(values).any(axis=0))


def coinciding(rows: Rows) -> list[list[str]]:
    """Return the groups, two or more together, whose curves nobody can tell apart on a figure: nowhere
    further from the first of them than 1 % of what the figure spans."""
    means: dict[str, dict[int, float]] = defaultdict(dict)  # group -> step -> mean
    for row in rows:
        if row["mean"] is not None:
            means[row["group"]][row["step"]] = row["mean"]
    values = [value for curve in means.values() for value in curve.values()]
    near = 0.01 * (max(values) - min(values)) if values else 0.0
    together: list[list[str]] = []
    for title, curve in means.items():
        for others in together:
            first = means[others[0]]
            if first.keys() == curve.keys() and all(abs(curve[step] - first[step]) <= near for step in first):
                others.append(title)
                break
        else:
            together.append([title])
    return [titles for titles in together if len(titles) > 1]


def operations_per_token(run: Run) -> float:
    """Return the floating-point operations of a training step per token; NaN if the run does not say its
    sizes."""
    keys = ("model.n_layer", "model.n_embd", "model.block_size")
    sizes: list[Any] = [*(run.config.get(key) for key in keys), run.vocab_size]
    known = all(type(size) is int and 0 < size < 2**40 for size in sizes)
    return operations(*sizes) if known else math.nan


def maps(groups: Groups) -> dict[str, Rows]:
    """Return the rows of each statistic that was logged block by block, such as act.rms/*.mlp. A row has
    group, step, block (two digits, such as "03"), and the mean over the seeds that have a value."""
    runs = [run for group in groups.values() for run in group.runs]
    names: dict[str, dict[str, str]] = defaultdict(dict)  # act.rms/*.mlp -> block -> act.rms/03.mlp
    for metric in sorted({name for run in runs for name in run.metrics}):
        kind, _, site = metric.partition("/")
        block, dot, rest = site.partition(".")
        if block.isdigit():
            names[f"{kind}/*{dot}{rest}"][block] = metric
    cells = len(groups) * sum(len(blocks) for blocks in names.values())
    columns = int(np.clip(CELLS // max(1, cells), 8, COLUMNS))
    result = {}
    for name, blocks in names.items():
        steps = thinned_steps(runs, next(iter(blocks.values())), columns)
        result[name] = [
            {"group": title, "step": int(step), "block": block, "value": rounded(value)}
            for title, group in groups.items()
            for block, metric in blocks.items()
            for step, value in zip(steps, table(group.runs, metric, steps).mean(axis=0), strict=True)
            if value is not np.ma.masked
        ]
    return result


def thinned_steps(runs: Sequence[Run], metric: str, limit: int) -> Floats:
    """Return the steps at which a run has the metric, or ``limit`` evenly spread ones if there are more."""
    steps = np.unique(np.concatenate([np.zeros(0), *(run.curve(metric)[0] for run in runs)]))
    return steps[np.unique(np.linspace(0, len(steps) - 1, min(limit, len(steps))).round().astype(int))]


def table(runs: Sequence[Run], metric: str, steps: Floats) -> np.ma.MaskedArray[Any, Any]:
    """Return the values (runs, steps) of a metric, masked where a run has no value."""
    values = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(values, runs, strict=True):
        _, columns, positions = np.intersect1d(steps, run.curve(metric)[0], return_indices=True)
        row[columns] = run.curve(metric)[1][positions]
    return np.ma.masked_invalid(values)


def rounded(value: float) -> float | None:
    """Return the value with five digits, more than a figure shows; None if not finite, as JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def operations(n_layer: int, n_embd: int, block_size: int, vocab_size: int) -> int:
    """Return the approximate number of floating-point operations of a training step per token. A forward
    takes two per weight plus those of attention's products (Kaplan et al. 2020, arXiv 2001.08361, section
    2.1); a backward takes twice as many as the forward."""
    weights = 12 * n_layer * n_embd**2 + vocab_size * n_embd
    return 3 * (2 * weights + 4 * n_layer * n_embd * block_size)
