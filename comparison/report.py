"""What is to be said of some runs: the table with its verdicts, and all that must be known to read it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from comparison import caveats, commands
from comparison import groups as grouping
from comparison.groups import RATE, ComparisonError, Group, Keys, title
from comparison.load import Run
from comparison.rates import Family, Sensitivity, families, sensitivities
from comparison.verdicts import (
    CONFIDENCE,
    Interval,
    holm,
    interval,
    p_of_best,
    p_value,
    paired,
    seeds_needed,
)

LOSS = "val/full_loss"
LOWER_IS_BETTER = ("loss", "perplexity", "seconds", "memory")


@dataclass
class Row:
    """A group, at its best learning rate where it has several, and how it compares."""

    family: Family
    loss: Interval
    baseline: Family | None = None
    difference: Interval | None = None  # to the baseline, over common seeds
    p: float = math.nan  # adjusted for all comparisons of the report
    verdict: str = ""
    needed: tuple[int, int] | None = None  # seeds that may settle it
    command: str = ""  # that runs some of them

    @property
    def group(self) -> Group:
        return self.family.chosen

    @property
    def title(self) -> str:
        return title(self.family.keys)


@dataclass
class Report:
    """All of it. ``rows`` are in the order of their keys, baselines first; ``said`` are sentences to stand
    above the table, and ``warnings`` those that somebody must know before believing it."""

    metric: str
    rows: list[Row]
    runs: list[Run]
    groups: list[Group]
    said: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    sensitivities: list[Sensitivity] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return grouping.keys_of(row.group for row in self.rows)


def reported(
    runs: Sequence[Run],
    metric: str = LOSS,
    baseline: Mapping[str, str] | None = None,
    over: Sequence[str] = (),
    mixed: bool = False,
) -> Report:
    """Compare runs that have ended.

    Args:
        metric: the quantity: its last value in a run.
        baseline: values of keys; a group is compared with the one that has these and otherwise its own.
        over: keys to average over.
        mixed: compare what has other data, lengths or evaluations, too.

    Raises:
        ComparisonError: they cannot be compared, or there is nothing of that name.
    """
    if not any(metric in run.metrics for run in runs):
        names = sorted({name for run in runs for name in run.metrics})
        raise ComparisonError(f"--metric: no run has {metric}; they have {grouping.listed(names[:40])}")
    first = first_stage(runs)
    compared = [run for run in runs if run not in first]
    if not mixed:
        grouping.check_comparable(compared, metric)
    groups = grouping.grouped(compared, metric)
    if over and all(len(family.rates) == 1 for family in families(groups)):
        for group in groups:  # each at a rate of its own, which is no reason to keep them apart
            group.keys.pop(RATE, None)
    for key in over:
        if key == RATE:
            raise ComparisonError(
                f"--over: each group is compared at its own best rate; --where {RATE}=… takes one"
            )
        groups = grouping.averaged(groups, key)
    found = families(groups)
    rows = [Row(family, interval([*family.chosen.losses.values()])) for family in found]
    judge(rows, dict(baseline or {}), metric, compared)
    rows.sort(key=lambda row: row.verdict != "baseline")  # baselines first
    report = Report(metric, rows, compared, groups)
    tried = families(grouping.grouped(first, LOSS)) if first else []
    report.sensitivities = sensitivities(tried or (found if metric == LOSS else []))
    report.said = [caveats.regime(compared), caveats.rates(found, bool(first))]
    report.said += caveats.couplings(compared)
    if first:
        report.said.append(f"{len(first)} shorter runs, which chose the rates, are not compared.")
    report.warnings = [*caveats.of_runs(compared), *(said for row in rows for said in of_row(row, tried))]
    return report


def first_stage(runs: Sequence[Run]) -> list[Run]:
    """The runs by which the rate of others was chosen: those are ``tuned``, and these differ from them in
    rate, length and seed alone."""
    final = {likeness(run) for run in runs if RATE in (run.config.get("tuned") or [])}
    return [run for run in runs if not run.config.get("tuned") and likeness(run) in final]


def likeness(run: Run) -> str:
    """The same for runs that differ in rate, length and seed alone."""
    free = (RATE, "train.steps", "seed")
    return repr([(k, v) for k, v in run.config.items() if k not in free and not grouping.watching(k)])


def judge(rows: Sequence[Row], baseline: dict[str, str], metric: str, runs: Sequence[Run]) -> None:
    """Compare each row with its baseline, and let the verdicts hold together."""
    wanted = baseline_values(rows, baseline, runs)
    for row in rows:
        row.baseline = baseline_of(row, rows, wanted)
        if not row.baseline:
            is_one = all(row.family.keys.get(key) == value for key, value in wanted.items())
            row.verdict = "baseline" if is_one else "no baseline has its other settings"
    against = [row for row in rows if row.baseline]
    differences: list[list[float]] = []
    p_values = []
    for row in against:
        assert row.baseline
        differences.append(paired(row.group.losses, row.baseline.chosen.losses))
        row.difference = interval(differences[-1])
        p_values.append(p_of(row.family, row.baseline))
    lower = any(word in metric for word in LOWER_IS_BETTER)
    words = ("better", "worse") if lower else ("lower", "higher")
    counted = sum(not math.isnan(p) for p in p_values)
    for row, numbers, p in zip(against, differences, holm(p_values), strict=True):
        assert row.baseline
        row.p = p
        if row.group.diverged:
            row.verdict = f"diverged {len(row.group.diverged)} of {len(row.group.seeds)}"
        elif row.baseline.chosen.diverged:
            row.verdict = "the baseline diverged"
        elif not row.group.values or not row.baseline.chosen.values:
            row.verdict = f"no {metric} to compare"
        elif math.isnan(p):
            row.verdict = f"no verdict: {len(numbers)} common seed" + "s" * (len(numbers) != 1)
            row.command = commands.more_seeds([row.group, row.baseline.chosen], row.needed)
        elif p <= 1 - CONFIDENCE:
            row.verdict = words[0] if np.mean(numbers) < 0 else words[1]
        else:
            row.verdict = f"not distinguishable at {len(numbers)} seeds"
            price = max(len(row.family.rates), len(row.baseline.rates))  # of having chosen the rates
            row.needed = seeds_needed(numbers, counted * price)
            row.command = commands.more_seeds([row.group, row.baseline.chosen], row.needed)


def p_of(family: Family, baseline: Family) -> float:
    """Two-sided, of no difference, each at its best rate."""
    if family.best is None or baseline.best is None:
        return math.nan
    if len(family.rates) == len(baseline.rates) == 1:
        return p_value(paired(family.chosen.losses, baseline.chosen.losses))
    return p_of_best(family.losses, baseline.losses, family.best, baseline.best)


USUAL = {"norm": "layernorm", "placement": "pre", "model.embedding_norm": "none", "model.qk_norm": "none"}


def baseline_values(rows: Sequence[Row], asked: Mapping[str, str], runs: Sequence[Run]) -> Keys:
    """The keys' values that make a group a baseline: what is asked for, else USUAL of what is compared, else
    the first value of the first key. Options of the baseline's norm and placement are among them.

    Raises:
        ComparisonError: no group has what is asked for.
    """
    keys = [key for key in grouping.keys_of(row.group for row in rows) if key != RATE]
    usual = {key: word for key, word in USUAL.items() if key in keys}
    for key, text in asked.items():
        if key not in keys and not all(grouping.same(run.config.get(key), text) for run in runs):
            raise ComparisonError(
                f"--baseline: no group has {key}={text}; they differ in {grouping.listed(keys)}"
            )
    asked = {key: text for key, text in asked.items() if key in keys}
    wanted = asked or usual
    row = next((row for row in rows if has(row, wanted)), None)
    if row is None and asked:
        words = " ".join(f"{key}={text}" for key, text in asked.items())
        raise ComparisonError(
            f"--baseline: no group has {words}; there are {grouping.listed(r.title for r in rows)}"
        )
    row = row or rows[0]
    chosen = list(wanted) or keys[:1]
    options = [key for key in keys if grouping.component(key)]
    return {key: row.family.keys.get(key) for key in dict.fromkeys([*chosen, *options])}


def has(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(
        grouping.same(row.family.keys.get(key, grouping.MISSING), text) for key, text in wanted.items()
    )


def baseline_of(row: Row, rows: Sequence[Row], wanted: Keys) -> Family | None:
    """The family that has the baseline's values, and otherwise this row's own; None for a baseline itself."""
    own = row.family.keys
    if all(own.get(key) == value for key, value in wanted.items()):
        return None
    target = own | wanted
    return next((other.family for other in rows if other.family.keys == target), None)


def of_row(row: Row, tried: Sequence[Family]) -> list[str]:
    """What must be known before this row is believed. ``tried``: the families of the runs that chose the
    rates."""
    found = []
    first = [f for f in tried if likeness(f.chosen.runs[0]) == likeness(row.group.runs[0])]
    chosen = [family for family in first if row.family.best in (min(family.rates), max(family.rates))]
    if row.family.at_edge or any(len(family.rates) > 1 for family in chosen):
        found.append(
            f"its best learning rate, {row.family.best:g}, is the edge of what was tried: "
            "a better one may lie beyond"
        )
    if any(run.leaks for run in row.group.runs):
        found.append(
            "it LEAKS: in training its logits depend on later tokens or other rows, so its training loss is "
            "not a language model's; compare it on validation only"
        )
    if row.difference and not row.group.diverged and row.difference.n < len(row.group.values):
        found.append(f"only {row.difference.n} of its {len(row.group.values)} seeds are the baseline's, too")
    return [f"{row.title}: {said}" for said in found]
