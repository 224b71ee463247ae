"""Test whether a difference is noise: paired t-intervals, simultaneous verdicts, and the seeds needed.

Runs of one seed see the same batches and start from the same weights, so two groups are compared seed by
seed: the differences have less noise than the losses.

    interval            Student 1908: mean ± t·s/√n
    holm                Holm 1979: the chance that any verdict of a report is false is at most 5 %
    p_of_best           a p-value at best rates that were chosen on the compared runs
    seeds_needed        the sample size of a paired t-test with a power of 80 %
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, nctdtr, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
MAX_SEEDS = 1000  # more than anybody trains

Losses = Mapping[int, float]  # seed -> loss


@dataclass(frozen=True)
class Interval:
    """The interval of the mean of n numbers. For n = 1, low and high are NaN; for n = 0, mean is NaN, too."""

    n: int
    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def interval(numbers: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the t-interval of the mean."""
    n = len(numbers)
    mean = float(np.mean(numbers)) if n else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2) * np.std(numbers, ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def paired(group: Losses, baseline: Losses) -> list[float]:
    """Return group − baseline for each seed that is in both."""
    return [group[seed] - baseline[seed] for seed in sorted(group.keys() & baseline.keys())]


def p_less(differences: Sequence[float]) -> float:
    """Return the p-value of a one-sided paired t-test: how likely such differences are if their true mean is
    not below 0. NaN for fewer than two differences."""
    n = len(differences)
    if n < 2:
        return math.nan
    mean, deviation = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if deviation == 0:
        return 0.5 if mean == 0 else 1.0 if mean > 0 else 0.0
    return float(stdtr(n - 1, mean / (deviation / math.sqrt(n))))


def p_value(differences: Sequence[float]) -> float:
    """Return the p-value of a two-sided paired t-test of a mean of 0; NaN for fewer than two differences."""
    return 2 * min(p_less(differences), p_less([-d for d in differences]))


def p_of_best(
    group: Mapping[float, Losses], baseline: Mapping[float, Losses], best: float, baseline_best: float
) -> float:
    """Return the two-sided p-value of no difference at best rates that were chosen on the compared runs.

    The group is better if, at the rate chosen for it, it is better than the baseline at every rate. Choosing
    one of k rates costs a factor of k (Bonferroni). The baseline's truly best rate is among those compared,
    so the baseline's rates cost nothing (Berger 1982, intersection-union).

    Args:
        group, baseline: rate -> losses by seed.
        best, baseline_best: the chosen rates.

    Returns:
        NaN if any two rates have fewer than two seeds in common: a rate that is not compared may be the best.
    """

    def p_better(a: Mapping[float, Losses], best_of_a: float, b: Mapping[float, Losses]) -> float:
        return len(a) * float(np.max([p_less(paired(a[best_of_a], losses)) for losses in b.values()]))

    p = 2 * min(p_better(group, best, baseline), p_better(baseline, baseline_best, group))
    return p if math.isnan(p) else min(1.0, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, adjusted for how many there are; NaN stays NaN and does not count."""
    ordered = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p))
        adjusted[i] = largest
    return adjusted


def power(effect: float, n: NDArray[np.int64], alpha: float) -> NDArray[np.float64]:
    """Return how often a two-sided paired t-test with n pairs finds an effect with the right sign; NaN where
    scipy cannot tell that from 1. ``effect`` is the mean difference in standard deviations, above 0."""
    result: NDArray[np.float64] = 1 - nctdtr(n - 1, effect * np.sqrt(n), stdtrit(n - 1, 1 - alpha / 2))
    return result


def pairs_needed(effect: float, alpha: float) -> int:
    """Return the fewest pairs with a power of POWER; MAX_SEEDS + 1 if more would be needed."""
    n = np.arange(2, MAX_SEEDS + 1)
    sufficient = n[power(effect, n, alpha) >= POWER]
    return int(sufficient[0]) if len(sufficient) else MAX_SEEDS + 1


def seeds_needed(differences: Sequence[float], comparisons: int) -> tuple[int, int] | None:
    """Return the fewest and the most seeds that it may take to distinguish the observed difference from 0.

    Few seeds say little about the noise, so there are two numbers: one for each end of an 80 % interval of
    its standard deviation. None if there is no noise or no difference.
    """
    n = len(differences)
    mean, deviation = abs(float(np.mean(differences))), float(np.std(differences, ddof=1)) if n > 1 else 0.0
    if deviation == 0 or mean == 0:
        return None
    alpha = (1 - CONFIDENCE) / comparisons
    ends = [deviation * math.sqrt((n - 1) / chdtri(n - 1, tail)) for tail in (0.1, 0.9)]  # low, high
    low, high = (pairs_needed(mean / end, alpha) for end in ends)
    return max(low, n + 1), max(high, n + 1)
