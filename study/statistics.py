"""The rule by which a study gives verdicts, and the rows of its table.

docs/ablations.md says what a verdict promises; tests/study/test_statistics.py simulates the promise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict
from scipy.stats import t

from study.files import Arm, Part, Study, choice_of
from study.runs import Curve, RunResult

Floats = NDArray[np.float64]
Outcome = str  # better, worse, equivalent or open
FIRST, EXTENDED = 0.04, 0.01  # a study's chance of a false verdict: on its first seeds; once extended
MIN_PAIRS, MOST_SEEDS = 3, 1000  # fewest pairs for a verdict; most seeds that seeds_needed tries
NO_BASELINE = "no baseline"  # Row.reason of loose runs without a baseline


@dataclass(frozen=True, kw_only=True)
class Row:
    """An arm in the table.

    Attributes:
        keys: the arm's overrides, by key.
        baseline: title of the arm that this one is compared with. None: this arm is a baseline, or, if the
            reason is NO_BASELINE, has none.
        seeds: all declared seeds.
        losses: by seed, of the runs that have ended; None: the run diverged.
        mean: of the losses; None if a seed diverged.
        difference: mean of the differences from the baseline, paired by seed.
        low, high: the interval of the difference. In a study that gives verdicts, an arm without a verdict
            has no interval. For loose runs, it is a plain 95 % interval.
        reason: why the arm has no outcome; for a baseline, why the arms compared with it have no outcome.
        leaks: the modes, "training" or "evaluation", in which logits depend on later tokens or other rows of
            the batch; and "not tested".
        diverged, collapsed: the number of seeds that did.
        settings, half_the_trials, edges: as in chosen.json.
        tokens_per_s: median over runs. memory: largest peak, bytes. bpb: mean bits per byte.
        steps_to_baseline: mean number of steps until val/loss reaches the baseline's final val/loss; None if
            a seed never reaches it.
        seeds_needed: how many seeds of a new study would decide an open arm, if its difference stays as it
            is; None: more than MOST_SEEDS.
    """

    __pydantic_config__: ClassVar = ConfigDict(json_schema_serialization_defaults_required=True)

    title: str
    keys: dict[str, str]
    baseline: str | None = None
    seeds: list[int]
    losses: dict[int, float | None]
    mean: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    leaks: list[str]
    diverged: int
    collapsed: int
    settings: dict[str, Any] = field(default_factory=dict)
    half_the_trials: float | None = None
    edges: list[str] = field(default_factory=list)
    tokens_per_s: float | None
    memory: int | None
    bpb: float | None
    steps_to_baseline: float | None = None
    seeds_needed: int | None = None


# ---------------------------------------------------------------------------------------------------
# The rule


def half_width(deviation: ArrayLike, n: ArrayLike, comparisons: int, share: float) -> Floats:
    """Return half the width of the two-sided t interval for the mean of ``n`` differences, at the level 1 −
    share/comparisons."""
    n = np.asarray(n)
    return np.asarray(t.ppf(1 - share / (2 * comparisons), n - 1) * deviation / np.sqrt(n))


def judge(
    arm: ArrayLike, baseline: ArrayLike, comparisons: int, matters: float, share: float = FIRST
) -> tuple[Floats, Floats, Floats, NDArray[np.str_]]:
    """Judge losses of shape (..., n), paired by seed. Return difference, low, high and outcome, each of shape
    (...).

    Args:
        comparisons: how many comparisons the study makes; they share its chance of a false verdict.
        matters: nats. An arm whose interval lies within ±matters is equivalent; with 0, no arm is.
        share: FIRST, or EXTENDED to judge all seeds of an extended study.
    """
    d = np.asarray(arm, np.float64) - np.asarray(baseline, np.float64)
    difference, half = d.mean(-1), half_width(d.std(-1, ddof=1), d.shape[-1], comparisons, share)
    low, high = difference - half, difference + half
    cases = {"equivalent": (-matters < low) & (high < matters), "better": high < 0, "worse": low > 0}
    return difference, low, high, np.select([*cases.values()], [*cases], "open")


def seeds_needed(differences: Floats, comparisons: int, matters: float, share: float = FIRST) -> int | None:
    """Return the smallest number of seeds that would decide an open arm, if the mean and the standard
    deviation of its differences stay as they are; None if MOST_SEEDS would not."""
    mean, deviation = abs(np.mean(differences)), np.std(differences, ddof=1)
    n = np.arange(MIN_PAIRS, MOST_SEEDS + 1)
    decided = half_width(deviation, n, comparisons, share) < max(mean, matters - mean)
    return int(n[decided][0]) if decided.any() else None


# ---------------------------------------------------------------------------------------------------
# The rows


def results_of(
    study: Study, chosen: Part, extended: Part, runs: Mapping[str, RunResult]
) -> dict[str, dict[int, RunResult]]:
    """Return the compared runs that have ended, by title and seed. ``runs``: all runs that have ended, by
    name. An arm without usable settings has no compared runs."""
    seeds = seeds_of(study, extended)
    named = {arm.title: compared_runs(arm.title, chosen, extended) for arm in study.arms}
    return {
        title: {seed: runs[name] for seed, name in zip(seeds, names, strict=False) if name in runs}
        for title, names in named.items()
    }


def compared_runs(title: str, chosen: Part, extended: Part) -> list[str]:
    """Return the names of an arm's compared runs, in the order of their seeds."""
    return choice_of(chosen, title).get("runs", []) + (extended["runs"].get(title, []) if extended else [])


def seeds_of(study: Study, extended: Part) -> list[int]:
    return [*study.seeds, *(extended["seeds"] if extended else [])]


def rows(
    study: Study, chosen: Part, extended: Part, results: Mapping[str, Mapping[int, RunResult]]
) -> list[Row]:
    """Return the row of each arm. ``results``: as ``results_of`` returns them."""
    seeds, share = seeds_of(study, extended), EXTENDED if extended else FIRST
    choices = {arm.title: choice_of(chosen, arm.title) for arm in study.arms}
    flaws = {title: flaw(study, choices[title], results[title], seeds) for title in choices}

    def row_of(arm: Arm) -> Row:
        own, choice, base = results[arm.title], choices[arm.title], study.baseline_of(arm).title
        theirs = {} if base == arm.title else results[base]
        reason = flaws[arm.title] or (flaws[base] and f"its baseline: {flaws[base]}")
        return Row(
            title=arm.title,
            keys=by_key(arm.overrides),
            seeds=seeds,
            baseline=None if base == arm.title else base,
            reason=reason,
            settings=choice.get("settings") or {},
            half_the_trials=choice.get("half_the_trials"),
            edges=choice.get("edges", []),
            **observed(own, study.metric),
            **compared([(own[seed], theirs[seed]) for seed in own if seed in theirs], reason, study, share),
        )

    return [row_of(arm) for arm in study.arms]


def flaw(
    study: Study, choice: Mapping[str, Any], own: Mapping[int, RunResult], seeds: Sequence[int]
) -> str | None:
    """Return why an arm's own runs allow no verdict; None if they allow one."""
    written, runs = datetime.fromisoformat(study.written), own.values()
    is_judged = study.verdicts and study.declared != "reconstructed"
    flaws = [
        (choice.get("reason"), choice.get("reason")),
        ("a seed diverged", any(run.diverged for run in runs)),
        # losses are measured in evaluation mode, so a leak in training mode is only marked
        ("it leaks", any("evaluation" in run.leaks for run in runs)),
        ("causality not tested", any("not tested" in run.leaks for run in runs)),
        ("began before the study", is_judged and any(run.began < written for run in runs)),
        ("unfinished", len(own) < len(seeds)),
        ("no verdicts in this study", not study.verdicts),
        (f"fewer than {MIN_PAIRS} pairs", len(seeds) < MIN_PAIRS),
    ]
    return next((reason for reason, holds in flaws if holds), None)


def compared(
    pairs: Sequence[tuple[RunResult, RunResult]], reason: str | None, study: Study, share: float
) -> dict[str, Any]:
    """Return the part of a row that compares an arm with its baseline. ``pairs``: their runs on the same
    seeds. ``reason``: why the arm has no verdict. An arm with a reason has no interval, except in a study
    that gives no verdicts."""
    if not pairs or any(run.diverged for pair in pairs for run in pair):
        return {}
    arm, baseline = np.array([[run.losses[study.metric] for run in pair] for pair in pairs]).T
    found = {"difference": float(np.mean(arm - baseline)), "steps_to_baseline": steps_to_end(pairs)}
    if len(pairs) < MIN_PAIRS or (reason and study.verdicts):
        return found
    _, low, high, outcome = judge(arm, baseline, study.comparisons, study.matters, share)
    found |= {"low": low.item(), "high": high.item()}
    if reason:
        return found
    is_open = outcome == "open"
    needed = seeds_needed(arm - baseline, study.comparisons, study.matters) if is_open else None
    return found | {"outcome": outcome.item(), "seeds_needed": needed}


def observed(runs: Mapping[int, RunResult], metric: str) -> dict[str, Any]:
    """Return the part of a row that describes an arm's own runs. ``runs``: by seed."""
    own = runs.values()
    losses = {seed: run.losses.get(metric) for seed, run in runs.items()}
    speeds = [run.tokens_per_s for run in own if run.tokens_per_s]
    return {
        "losses": losses,
        "mean": average(losses.values()),
        "leaks": sorted({mode for run in own for mode in run.leaks}),
        "diverged": sum(run.diverged for run in own),
        "collapsed": sum(run.collapsed for run in own),
        "tokens_per_s": float(np.median(speeds)) if speeds else None,
        "memory": max((run.memory for run in own if run.memory), default=None),
        "bpb": average(run.losses.get("val/bpb") for run in own),
    }


def has_two_parts(losses: Sequence[float]) -> bool:
    """Return whether five or more losses fall into two groups. They do if the largest gap between neighbours
    exceeds a multiple of the pooled standard deviation on the two sides of the gap. The factor is the 99.95 %
    quantile of Student's t. At most 1.5 % of normal samples fall into two groups."""
    if len(losses) < 5:
        return False
    ordered = np.sort(losses)
    gaps = np.diff(ordered)
    sides = np.split(ordered, [int(gaps.argmax()) + 1])
    degrees = len(losses) - 2
    within = np.sqrt(sum(((side - side.mean()) ** 2).sum() for side in sides) / degrees)
    return bool(gaps.max() > max(t.ppf(0.9995, degrees) * within, 1e-9 * ordered.max()))


def steps_to_end(pairs: Iterable[tuple[RunResult, RunResult]]) -> float | None:
    """Return the mean number of steps until val/loss reaches the baseline's final val/loss."""
    return average(steps_to(base.curve[-1][1], run.curve) for run, base in pairs)


def steps_to(goal: float, curve: Curve) -> float | None:
    """Return the first step at which val/loss is at most ``goal``, interpolated between evaluations; None if
    it never is."""
    for (before, above), (step, loss) in pairwise([curve[0], *curve]):
        if loss <= goal:
            return step - (goal - loss) / (above - loss) * (step - before) if above > loss else float(step)
    return None


def average(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if there are no values, or if one is None."""
    numbers = [*values]
    present = [number for number in numbers if number is not None]
    return sum(present) / len(numbers) if numbers and len(present) == len(numbers) else None


def by_key(words: Iterable[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}
