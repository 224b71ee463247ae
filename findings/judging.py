"""Judge a finding by the numbers of each seed.

The mean of a quantity has a 95 % t-interval over seeds (Student 1908), in scipy
``t.interval(0.95, n - 1, mean, sem)``. The quantity

- passes if the interval lies in the expected range;
- fails if the interval, widened if the finding has several quantities, lies outside the range;
- is inconclusive otherwise: the interval crosses an end of the range, there are fewer than three seeds, or a
  number is non-finite.

A finding passes if all of its quantities pass, and fails if one fails. Since all must pass, a false PASS of
the finding is no likelier than a false PASS of a quantity (Berger 1982). Since one failure is enough, a false
FAIL would be likelier, so the k intervals that decide a FAIL are simultaneous (Bonferroni, 1 − 5 % / k). The
conditions come first: if one of ``inconclusive`` is not fulfilled, the finding is INCONCLUSIVE.

The number of seeds is part of a finding, since it must not depend on results.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import sem, t

from findings.finding import MIN_SEEDS, Expected, Finding, Interval

ERROR = 0.05  # the chance of a false verdict


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Outcome:
    quantity: str
    expected: Expected
    interval: Interval
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A finding's verdict, the reason if it is inconclusive, and the outcomes of all quantities."""

    verdict: Verdict
    reason: str
    quantities: list[Outcome]
    conditions: list[Outcome]
    because: list[Outcome]


def interval(values: Sequence[float], error: float = ERROR) -> Interval:
    """Return the t-interval of the mean, which misses it with a chance of ``error``."""
    n, mean = len(values), float(np.mean(values))
    half = float(t.ppf(1 - error / 2, n - 1) * sem(values)) if n > 1 else math.nan
    return Interval(n, mean, mean - half, mean + half)


def judge_quantity(quantity: str, expected: Expected, values: Sequence[float], together: int) -> Outcome:
    """Return the outcome of a quantity, from its value in each seed. ``together``: how many quantities are
    judged together, such as all of a finding, which widens the interval that decides a FAIL."""
    if not all(map(math.isfinite, values)):
        no_interval = Interval(len(values), math.nan, math.nan, math.nan)
        return Outcome(quantity, expected, no_interval, Verdict.INCONCLUSIVE)
    mean_interval = interval(values)
    verdict = Verdict.INCONCLUSIVE
    if len(values) >= MIN_SEEDS and expected.holds(mean_interval):
        verdict = Verdict.PASS
    elif len(values) >= MIN_SEEDS and expected.excludes(interval(values, ERROR / together)):
        verdict = Verdict.FAIL
    return Outcome(quantity, expected, mean_interval, verdict)


def judge(finding: Finding, by_seed: Mapping[int, Mapping[str, float]]) -> Judgement:
    """Return the verdict on a finding, with its reason and outcomes; the rules are at the top of this file.
    ``by_seed``: seed -> quantity -> value."""

    def judge_all(expectations: Mapping[str, Expected]) -> list[Outcome]:
        judged = []
        for name, expected in expectations.items():
            values = [values_of_seed.get(name, math.nan) for values_of_seed in by_seed.values()]
            judged.append(judge_quantity(name, expected, values, len(expectations)))
        return judged

    parts = judge_all(finding.expected), judge_all(finding.inconclusive), judge_all(finding.because)
    quantities, conditions, _ = parts
    for outcome in conditions:
        if outcome.verdict != Verdict.PASS:
            failed = outcome.verdict == Verdict.FAIL
            return Judgement(
                Verdict.INCONCLUSIVE, outcome.expected.why if failed else undecided(outcome), *parts
            )
    if any(outcome.verdict == Verdict.FAIL for outcome in quantities):
        return Judgement(Verdict.FAIL, "", *parts)
    for outcome in quantities:
        if outcome.verdict == Verdict.INCONCLUSIVE:
            return Judgement(Verdict.INCONCLUSIVE, undecided(outcome), *parts)
    return Judgement(Verdict.PASS, "", *parts)


def undecided(outcome: Outcome) -> str:
    """Return why a quantity neither passes nor fails."""
    if outcome.interval.n < MIN_SEEDS:
        return f"fewer than {MIN_SEEDS} seeds"
    if not math.isfinite(outcome.interval.mean):
        return f"{outcome.quantity}: the value is non-finite in some seeds"
    if outcome.expected.excludes(outcome.interval):  # which is not widened for the number of quantities
        return f"{outcome.quantity}: widened for several quantities, the interval crosses an end of the range"
    return f"{outcome.quantity}: the interval crosses an end of the expected range"
