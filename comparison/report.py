"""What is to be said of some runs: the table with its verdicts, and all that must be known to read it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from comparison import caveats
from comparison import groups as grouping
from comparison.folders import Run
from comparison.groups import RATE, ComparisonError, Group, title
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
    needed: tuple[int, int] | None = None  # seeds that would settle it
    command: str = ""  # that runs some of them

    @property
    def group(self) -> Group:
        return self.family.chosen

    @property
    def title(self) -> str:
        return title(self.family.keys)

    @property
    def settled(self) -> bool:
        return self.verdict in ("better", "worse", "higher", "lower", "baseline")


@dataclass
class Report:
    """All of it. ``rows`` are in the order of their keys; ``said`` are sentences to stand above the table,
    and ``warnings`` those that somebody must know before believing it."""

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
    metric: str = "val/full_loss",
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
    final = [run for run in runs if run.config.get("tuned")]
    compared, others = (final, [run for run in runs if run not in final]) if final else (list(runs), [])
    if not mixed:
        grouping.check_comparable(compared, metric)
    groups = grouping.grouped(compared, metric)
    for key in over:
        groups = grouping.averaged(groups, key)
    found = families(groups)
    rows = [Row(family, interval([*family.chosen.losses.values()])) for family in found]
    judge(rows, {} if baseline is None else dict(baseline), metric)
    rows.sort(key=lambda row: row.verdict != "baseline")  # baselines first
    report = Report(metric, rows, compared, groups)
    report.sensitivities = sensitivities(families(grouping.grouped(others, metric)) if others else found)
    report.said = [caveats.regime(compared), caveats.rates(found, bool(final))]
    report.warnings = [*caveats.of_runs(compared), *(said for row in rows for said in of_row(row))]
    return report


def judge(rows: Sequence[Row], baseline: dict[str, str], metric: str) -> None:
    """Compare each row with its baseline, and let the verdicts hold together."""
    wanted = baseline or default_baseline(rows)
    for row in rows:
        row.baseline = baseline_of(row, rows, wanted)
        if not row.baseline:
            is_one = all(same(row, key, value) for key, value in wanted.items())
            row.verdict = "baseline" if is_one else "no baseline has its other settings"
    against = [row for row in rows if row.baseline]
    if baseline and not against:
        raise ComparisonError(
            f"--baseline: no group has {' '.join(f'{k}={v}' for k, v in baseline.items())}; "
            f"there are {grouping.listed(row.title for row in rows)}"
        )
    differences: list[list[float]] = []
    p_values = []
    for row in against:
        assert row.baseline
        differences.append(paired(row.group.losses, row.baseline.chosen.losses))
        row.difference = interval(differences[-1])
        p_values.append(p_of(row.family, row.baseline))
    lower = any(word in metric for word in LOWER_IS_BETTER)
    words = ("better", "worse") if lower else ("lower", "higher")
    for row, numbers, p in zip(against, differences, holm(p_values), strict=True):
        assert row.baseline
        row.p = p
        if row.group.diverged:
            row.verdict = f"diverged {len(row.group.diverged)} of {len(row.group.seeds)}"
        elif row.baseline.chosen.diverged:
            row.verdict = "the baseline diverged"
        elif len(numbers) < 2:
            row.verdict = f"no verdict: {len(numbers)} common seed" + "s" * (len(numbers) != 1)
        elif p <= 1 - CONFIDENCE:
            row.verdict = words[0] if np.mean(numbers) < 0 else words[1]
        else:
            row.verdict = f"not distinguishable at {len(numbers)} seeds"
            row.needed = seeds_needed(numbers, len(against))
        if not row.settled:
            row.command = more_seeds(row)


def p_of(family: Family, baseline: Family) -> float:
    """Two-sided, of no difference, each at its best rate."""
    if family.best is None or baseline.best is None:
        return math.nan
    if len(family.rates) == len(baseline.rates) == 1:
        return p_value(paired(family.chosen.losses, baseline.chosen.losses))
    return p_of_best(family.losses, baseline.losses, family.best, baseline.best)


def default_baseline(rows: Sequence[Row]) -> dict[str, str]:
    """LayerNorm before each branch, where norms or placements are compared; else the first value of the first
    key."""
    keys = grouping.keys_of(row.group for row in rows)
    keys = [key for key in keys if key != RATE]
    wanted = {key: usual for key, usual in (("norm", "layernorm"), ("placement", "pre")) if key in keys}
    if wanted and all(any(same(row, key, value) for row in rows) for key, value in wanted.items()):
        return wanted
    return {keys[0]: grouping.shown(rows[0].family.keys[keys[0]])} if keys and rows else {}


def same(row: Row, key: str, value: str) -> bool:
    return grouping.same(row.family.keys.get(key, grouping.MISSING), value)


def baseline_of(row: Row, rows: Sequence[Row], wanted: Mapping[str, str]) -> Family | None:
    """The family that has the baseline's values, and otherwise this row's own; None for the baseline itself.
    An option of a norm or placement is not asked of another."""
    if not wanted or all(same(row, key, value) for key, value in wanted.items()):
        return None

    def fits(other: Row) -> bool:
        return all(
            same(other, key, wanted[key])
            if key in wanted
            else key.split(".")[0] in wanted or other.family.keys.get(key) == value
            for key, value in row.family.keys.items()
        )

    return next((other.family for other in rows if fits(other)), None)


def more_seeds(row: Row) -> str:
    """The command that brings this group and its baseline to as many seeds as may settle the question: the
    lower end of what is needed, at least one more, at most 20."""
    assert row.baseline
    groups = (row.group, row.baseline.chosen)
    seeds = sorted({seed for group in groups for seed in group.seeds})
    target = min(max(row.needed[0] if row.needed else 0, 3), 20)
    first = max(seeds, default=-1) + 1
    wanted = seeds + list(range(first, first + max(0, target - len(seeds))))
    commands = []
    for group in groups:
        missing = [str(seed) for seed in wanted if seed not in group.seeds]
        given = group.runs[0].environment.get("overrides") or []
        arguments = [a for a in given if a.partition("=")[0] not in ("seed", "fresh")]
        if missing and given:
            words = shlex.join(["python", "train.py", "-m", *arguments, f"seed={','.join(missing)}"])
            commands.append(words)
    return " && ".join(commands)


def of_row(row: Row) -> list[str]:
    """What must be known before this row is believed."""
    found = []
    if row.family.at_edge:
        found.append(
            f"its best learning rate, {row.family.best:g}, is the edge of what was tried: "
            "a better one may lie beyond"
        )
    if any(run.leaks for run in row.group.runs):
        found.append(
            "it LEAKS: in training its logits depend on later tokens or other rows, so its training loss is "
            "not a language model's; compare it on validation only"
        )
    if row.baseline and row.difference and row.difference.n < len(row.group.seeds):
        found.append(f"only {row.difference.n} of its {len(row.group.seeds)} seeds are the baseline's, too")
    return [f"{row.title}: {said}" for said in found]
