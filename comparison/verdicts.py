"""Decide whether a difference is noise: intervals, and the verdicts of a table that is looked at repeatedly.

Runs of one seed see the same batches and start from the same weights, so two groups are compared seed by
seed: the differences have less noise than the losses.

    interval            Student 1908: mean ± t·s/√n, of one comparison that is looked at once
    decide              the verdicts: the chance that any of a table is false is about 5 %, at all looks
    looks_needed        the pairs at which the rule has a power of 80 %

results/verdicts.md has simulations of the rule (scripts/simulate_verdicts.py) and of others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, nctdtr, stdtrit

from comparison.moderation import moderated_t
from comparison.plans import MIN_PAIRS

CONFIDENCE = 0.95
POWER = 0.8
MATTERS = 0.01  # nats; a smaller difference of losses is of no interest
PLAN_ERROR = 0.045  # of the 5 %, the part of the planned look; the later looks have the rest
LOOKS = (3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50)  # pairs; nothing is decided between two looks

ALL_THE_SAME = "its differences are nearly all the same"  # the reason for which no number of them decides

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


@dataclass(frozen=True)
class Decision:
    """The verdict on each arm, in arrays (tables, arms)."""

    verdict: NDArray[np.str_]  # "lower", "higher", "equivalent" (less than what matters, either way), "open"
    reason: NDArray[np.str_]  # why an arm is open; "" if it is not
    p: NDArray[np.float64]  # of no difference, adjusted for comparisons and looks; NaN before the first look
    p_equivalent: NDArray[np.float64]  # of a difference of at least what matters, adjusted likewise


def looks(planned: int | None) -> list[tuple[int, float]]:
    """Return the numbers of pairs at which arms are judged, each with its part of the 5 %: PLAN_ERROR for the
    plan, and equal parts of the rest (of all, without a plan) for the later ones of LOOKS.

    With 7 arms, no plan, and seeds added one by one, an effect of 2 sds has a verdict after 5.4 seeds in the
    mean; with a t e-process, which may be looked at any number of times, after 9.6, and never before the 8th
    seed. A test at every seed instead of 13 looks finds small effects more seldom.
    """
    plan = [(planned, PLAN_ERROR)] if planned and planned >= MIN_PAIRS else []
    later = [size for size in LOOKS if not plan or size > plan[0][0]]
    return plan + [(size, (1 - CONFIDENCE - sum(error for _, error in plan)) / len(later)) for size in later]


def next_look(pairs: int, planned: int | None) -> int | None:
    """Return the least number of pairs, above ``pairs``, at which a verdict is possible."""
    return next((size for size, _ in looks(planned) if size > pairs), None)


def decide(
    differences: NDArray[np.float64], planned: int | None, comparisons: int, matters: float = MATTERS
) -> Decision:
    """Judge every arm of every table. A table has a false verdict with a chance of about 5 %, however often
    it is looked at while seeds are added; the same data always have the same verdicts.

    Each look (``looks``) tests two hypotheses of an arm on its first pairs (``moderated_t``): "no
    difference", and "a difference of at least what matters" (TOST, Schuirmann 1987). At most one is true, so
    each may have the arm's whole share of the error: Bonferroni over arms and looks. Holm's step-down gave
    false verdicts in 7 % of tables: arms that are rightly "higher" raise the others' shares, yet may
    themselves be falsely called equivalent.

    Args:
        differences: (tables, arms, seeds), nats: arm − baseline, NaN if a pair is missing. Seeds are in the
            order in which they were trained, the planned ones first.
        planned: the number of seeds that was recorded before the first run; None if none was.
        comparisons: the size of the family: all arms of the plan, hidden ones too; all pairs of groups if the
            baseline was chosen after looking.
        matters: the smallest difference that matters, in nats; at 0 nothing is equivalent.
    """
    present = ~np.isnan(differences)
    pairs = present.sum(2)
    # each arm's pairs, in the order of their seeds, before the missing ones
    first_pairs = np.take_along_axis(differences, np.argsort(~present, axis=2, kind="stable"), 2)
    p, p_equivalent = np.full(pairs.shape, np.nan), np.full(pairs.shape, np.nan)
    has_plan = np.all(present[..., : planned or 0], axis=2)
    lower, was_judged = np.zeros((2, *pairs.shape), bool)
    for size, error in looks(planned):
        if size > differences.shape[2]:
            break
        # these arms have the same seeds in this look, so they are also those whose variances are pooled
        has_first_seeds = np.all(present[..., :size], axis=2)
        # the planned look is at the planned seeds, a later one at these and any others
        judged = has_first_seeds if size == planned else has_plan & (pairs >= size)
        was_judged |= judged
        x = np.where(judged[..., None], first_pairs[..., :size], np.nan)
        # an adjusted p-value is at most 5 % if the p-value is at most error / comparisons
        factor = comparisons * (1 - CONFIDENCE) / error
        unequal, equivalent = (factor * each for each in moderated_t(x, has_first_seeds, matters))
        # the sign of the difference in the look with the lowest p so far, which decides
        lower = np.where((unequal < p) | np.isnan(p), x.mean(2) < 0, lower)
        p, p_equivalent = np.fmin(p, unequal), np.fmin(p_equivalent, equivalent)
    p, p_equivalent = np.minimum(p, 1), np.minimum(p_equivalent, 1)
    is_equivalent, is_different = p_equivalent <= 1 - CONFIDENCE, p <= 1 - CONFIDENCE
    verdict = np.select(
        [is_equivalent, is_different & lower, is_different], ["equivalent", "lower", "higher"], "open"
    )
    reasons = {
        "too few pairs": pairs < MIN_PAIRS,
        "planned pairs are missing": ~was_judged,
        ALL_THE_SAME: np.isnan(p),
        "not distinguishable": verdict == "open",
    }
    reason = np.select([*reasons.values()], [*reasons], "")
    return Decision(verdict, np.where(verdict == "open", reason, ""), p, p_equivalent)


def looks_needed(
    differences: Sequence[float], planned: int | None, comparisons: int, matters: float = MATTERS
) -> tuple[int, int] | None:
    """Return the fewest and the most pairs at which a verdict "lower" or "higher" has a chance of POWER, if
    the difference is as large as seen. Both are looks ahead; LOOKS[-1] + 1: none is sufficient.

    Few seeds say little about the noise, so there are two numbers: one for each end of an 80 % interval of
    its standard deviation. It is taken from the arm alone: the rule, which also knows the other arms', may
    be faster. None if the difference seen is less than its standard error, or than what matters: there may
    be nothing to find.
    """
    n = len(differences)
    if n < 2:
        return None
    mean, deviation = abs(float(np.mean(differences))), float(np.std(differences, ddof=1))
    if deviation == 0 or mean < max(matters, deviation / math.sqrt(n)):
        return None
    sizes, errors = np.array([look for look in looks(planned) if look[0] > n] or [(0, 0.0)]).T
    needed = []
    for tail in (0.1, 0.9):
        end = deviation * math.sqrt((n - 1) / chdtri(n - 1, tail))
        powers = 1 - nctdtr(
            sizes - 1, mean / end * np.sqrt(sizes), stdtrit(sizes - 1, 1 - errors / comparisons / 2)
        )
        sufficient = sizes[~(powers < POWER) & (sizes > n)]  # NaN: scipy cannot tell it from 1
        needed.append(int(sufficient[0]) if len(sufficient) else LOOKS[-1] + 1)
    return needed[0], needed[1]
