"""From the numbers of each seed to a verdict.

A quantity's mean has a 95 % t-interval over seeds (Student 1908). The quantity

- passes if the interval lies where the mean should; - fails if it lies outside, made wider where a finding
has several quantities; - is inconclusive if neither: it reaches over an end, there are fewer than three
seeds, or a number is not finite.

A finding passes where all of its quantities do, fails where one does. That all must pass makes a false PASS
of the whole no likelier than of one (Berger 1982); that one failure is enough would make a false FAIL
likelier, so for that the k intervals are simultaneous ones (Bonferroni, 1 − 5 %/k). Conditions come first:
where one of ``inconclusive`` is not fulfilled the finding is INCONCLUSIVE whatever else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from comparison.verdicts import CONFIDENCE, Interval, interval
from findings.finding import Expected, Finding

FEWEST = 3  # seeds


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Judged:
    """One quantity."""

    quantity: str
    expected: Expected
    found: Interval
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A finding's verdict, why it is none, and its quantities and conditions."""

    verdict: Verdict
    why: str
    quantities: list[Judged]
    conditions: list[Judged]
    because: list[Judged]


def judged(quantity: str, expected: Expected, values: Sequence[float], among: int) -> Judged:
    """One quantity, of each seed, among so many."""
    if not all(map(math.isfinite, values)):
        unknown = Interval(len(values), math.nan, math.nan, math.nan)
        return Judged(quantity, expected, unknown, Verdict.INCONCLUSIVE)
    found = interval(values)
    if len(values) < FEWEST:
        return Judged(quantity, expected, found, Verdict.INCONCLUSIVE)
    if expected.holds(found):
        return Judged(quantity, expected, found, Verdict.PASS)
    outside = expected.excludes(interval(values, 1 - (1 - CONFIDENCE) / among))
    return Judged(quantity, expected, found, Verdict.FAIL if outside else Verdict.INCONCLUSIVE)


def judge(finding: Finding, by_seed: Mapping[int, Mapping[str, float]]) -> Judgement:
    """What the numbers of each seed say of a finding."""

    def of(expectations: Mapping[str, Expected]) -> list[Judged]:
        return [
            judged(name, one, [values.get(name, math.nan) for values in by_seed.values()], len(expectations))
            for name, one in expectations.items()
        ]

    parts = of(finding.expected), of(finding.inconclusive), of(finding.because)
    quantities, conditions, _ = parts
    verdicts = {one.verdict for one in quantities}
    if unmet := [one for one in conditions if one.verdict != Verdict.PASS]:
        return Judgement(Verdict.INCONCLUSIVE, unmet[0].expected.why, *parts)
    if Verdict.FAIL in verdicts:
        return Judgement(Verdict.FAIL, "", *parts)
    if Verdict.INCONCLUSIVE in verdicts:
        open_ones = [one for one in quantities if one.verdict == Verdict.INCONCLUSIVE]
        return Judgement(Verdict.INCONCLUSIVE, undecided(open_ones[0]), *parts)
    return Judgement(Verdict.PASS, "", *parts)


def undecided(one: Judged) -> str:
    if one.found.n < FEWEST:
        return f"fewer than {FEWEST} seeds"
    if not math.isfinite(one.found.mean):
        return f"{one.quantity}: not a finite number in every seed"
    return f"{one.quantity}: the interval reaches over an end of what is expected"
