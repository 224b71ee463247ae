"""Doubts about one row of the table: why the row has no verdict, and what its mean may hide."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import stdtrit

from comparison import groups as grouping
from comparison.duplicates import TIMES
from comparison.groups import Group
from comparison.load import Run
from comparison.rates import LOSS, Family, has_collapsed
from comparison.roles import Roles
from comparison.verdicts import Interval, interval

LEAST_FOR_SHAPE = 5  # fewer seeds say nothing about the shape of their distribution
PHASES = {"train": "training", "eval": "validation"}


def unfit(family: Family, baseline_family: Family, metric: str) -> str:
    """Return why two families cannot be judged by a metric, however many seeds they have; "" if they can.

    Runs that chose their own rate have no verdict: with a rate for each seed that the other seeds chose
    (cross-fitting) 10 to 20 % of verdicts are false (results/verdicts.md).
    """
    group, baseline = family.best_group, baseline_family.best_group
    if group.diverged:
        return f"diverged {len(group.diverged)} of {len(group.seeds)}"
    if baseline.diverged:
        return "the baseline diverged"
    if not group.values or not baseline.values:
        return f"no {metric} to compare"
    if len(family.rates) > 1 or len(baseline_family.rates) > 1:
        return "no verdict: the compared runs chose the rates"
    if phase := phase_of(metric):
        for who, runs in (("it", group.runs), ("the baseline", baseline.runs)):
            if any(phase in run.leaking_modes for run in runs):
                return f"no verdict: {who} LEAKS in {PHASES[phase]}"
    return ""


def phase_of(metric: str) -> str | None:
    """Return the mode in which a model computes a quantity that a leak makes better; None for any other."""
    if metric.startswith("val/batch_stats") or (metric.startswith("train/") and metric not in TIMES):
        return "train"
    return "eval" if metric.startswith("val/") else None


def of_row(
    family: Family, difference: Interval | None, trials: Sequence[Family], metric: str, roles: Roles
) -> list[str]:
    """Return warnings about a row. ``trials``: the families by which best rates were chosen."""
    group = family.best_group
    lines = [
        *edges(family, trials, roles),
        *leaks(group.runs),
        *lost_seeds(group, metric),
        *shape(group, metric),
    ]
    total = len(group.values)
    if difference and not group.diverged and 0 < difference.n < total:
        lines.append(f"only {difference.n} of its {total} seeds are shared with the baseline")
    return lines


def edges(family: Family, trials: Sequence[Family], roles: Roles) -> list[str]:
    """Return warnings that a better rate may lie beyond the best one, or between it and one that failed; of
    several tuned keys, see comparison/tuning.py."""
    if len(roles.keys) > 1:
        return []
    likeness = roles.likeness
    arms = [(likeness(each.best_group.runs[0]), each) for each in (family, *trials)]
    tried: dict[str, set[float]] = defaultdict(set)  # by an arm, each of whose lengths of trials is a family
    for arm, each in arms:
        tried[arm] |= each.rates.keys()
    best = {likeness(run): float(run.config[grouping.RATE]) for run in family.best_group.runs}
    lines = []
    for arm, each in arms:
        rate = family.best if each is family else best.get(arm)
        if rate is None:
            continue
        # if several keys were tuned, a family has one rate, and tuning.edges warns
        if len(each.rates) > 1 and rate in (min(tried[arm]), max(tried[arm])):
            lines.append(
                f"its best learning rate, {rate:g}, is the lowest or highest that "
                "was tried: a better rate may lie beyond it"
            )
        for neighbour, count in each.failed_neighbours(rate).items():
            total = len(each.rates[neighbour].runs)
            lines.append(
                f"its best learning rate, {rate:g}, is at the edge of the rates that train: at {neighbour:g} "
                f"{count} of {total} diverged or collapsed; try {math.sqrt(rate * neighbour):.2g}"
            )
    return list(dict.fromkeys(lines))


def leaks(runs: Sequence[Run]) -> list[str]:
    modes = [mode for mode in PHASES if any(mode in run.leaking_modes for run in runs)]
    if modes == ["train"]:
        return [
            "it LEAKS: in training its logits depend on later tokens or other rows, so its training loss is "
            "not a language model's; compare it on validation only"
        ]
    if modes:
        where = " and in ".join(PHASES[mode] for mode in modes)
        return [
            f"it LEAKS: in {where} its logits depend on later tokens or other rows, so its losses there are "
            "not a language model's"
        ]
    doubts = dict.fromkeys(run.causality for run in runs if run.causality != "causal")
    return [f"whether it leaks was not fully tested ({', '.join(doubts)})"] if doubts else []


def lost_seeds(group: Group, metric: str) -> list[str]:
    """Return a warning about seeds that finished and have no number, and one about those that diverged."""
    lines = []
    lost = {run.seed for run in group.runs} - {*group.values, *group.diverged}
    without = {run.seed for run in group.runs if not math.isfinite(run.last(metric))}
    reasons = {
        f"finished without a number for {metric}": lost & without,
        "not trained at every averaged value": lost - without,
    }
    for why, seeds in reasons.items():
        if group.values and seeds:
            lines.append(f"left out: seed {grouping.join(map(str, sorted(seeds)))}, {why}")
    if group.diverged:
        finished = f", at {listed(group.values.values())}" if group.values else ""
        mean = interval([*group.values.values()])
        around = f" (mean {mean.mean:.4g} ± {mean.half:.2g})" if mean.n > 1 else ""
        lines.append(
            f"seed {grouping.join(map(str, sorted(group.diverged)))} diverged; "
            f"{len(group.values)} of {len(group.seeds)} finished{finished}{around}"
        )
    return lines


def shape(group: Group, metric: str) -> list[str]:
    """Return a warning if a mean and its t-interval would hide that the seeds fall into two parts."""
    if group.diverged:  # there is no mean, and ``lost_seeds`` lists the values
        return []
    ends = [run.last(LOSS) for run in group.runs]
    best = min(ends, default=math.nan)
    values = listed(group.values.values())
    if collapsed := sorted({run.seed for run in group.runs if has_collapsed(run, best)}):
        seeds = grouping.join(map(str, collapsed))
        return [
            f"seed {seeds} collapsed (ended less than half of the way from its initial loss down to the best "
            f"seed's), so the mean and ± describe no seed: {metric} is {values}"
        ]
    if has_two_parts([*group.values.values()]):
        return [f"its seeds fall into two parts, so the mean and ± describe neither: {metric} is {values}"]
    return []


def has_two_parts(values: Sequence[float]) -> bool:
    """Return True if the largest gap between neighbouring values, of at least 5, is more than the 99.95 %
    point of Student's t (n − 2 degrees of freedom) times the standard deviation within the two sides: so of
    5 or more normal values at most 1.5 % (tests/comparison/test_doubts.py)."""
    if len(values) < LEAST_FOR_SHAPE:
        return False
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    sides = np.split(ordered, [int(gaps.argmax()) + 1])
    within = math.sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / (len(values) - 2))
    return bool(gaps.max() > max(stdtrit(len(values) - 2, 0.9995) * within, 1e-9 * abs(ordered).max()))


def listed(values: Iterable[float]) -> str:
    return grouping.join(f"{value:.4g}" for value in sorted(values))
