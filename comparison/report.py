"""Report on runs: the table with its verdicts, and what a reader must know to interpret the table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from comparison import caveats, commands, doubts
from comparison import groups as grouping
from comparison.duplicates import unique
from comparison.groups import RATE, ComparisonError, Group, Keys, title
from comparison.load import Run
from comparison.plans import MIN_PAIRS, USUAL
from comparison.rates import LOSS, Family, Sensitivity, families, sensitivities
from comparison.tuning import sentences, tuning_runs
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
    """A group, at its best learning rate if it has several, compared with its baseline."""

    family: Family
    loss: Interval
    baseline: Family | None = None
    difference: Interval | None = None  # from the baseline, over common seeds
    verdict: str = ""
    seed_range: tuple[int, int] | None = None  # (fewest, most) seeds that may lead to a verdict
    command: str = ""  # the command that trains more seeds

    @property
    def group(self) -> Group:
        return self.family.best_group

    @property
    def title(self) -> str:
        return title(self.family.keys)

    @property
    def used(self) -> list[int]:
        """The seeds of the pairs that are compared; of the mean, if the row has no baseline."""
        losses = self.group.losses
        return sorted(losses.keys() & (self.baseline.best_group.losses if self.baseline else losses).keys())


@dataclass
class Report:
    """Everything that a comparison prints or writes."""

    metric: str
    rows: list[Row]  # sorted by their keys, the baseline first
    runs: list[Run]
    summary: list[str]  # the sentences above the table
    warnings: list[str]  # what a reader must know before believing the table
    sensitivities: list[Sensitivity]
    passed_over: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return grouping.keys_of(row.group for row in self.rows)


def build_report(
    runs: Sequence[Run],
    metric: str = LOSS,
    baseline: Mapping[str, str] | None = None,
    over: Sequence[str] = (),
    mixed: bool = False,
) -> Report:
    """Compare runs that have ended, by the last value of a metric.

    Args:
        baseline: values of keys; a group's baseline has these values and is otherwise the same as the group.
        over: keys to average over.
        mixed: allow runs to differ in data, length or evaluation.

    Raises:
        ComparisonError: the runs are not comparable, or no run has the metric, key or baseline.
    """
    if not any(metric in run.metrics for run in runs):
        names = sorted({name for run in runs for name in run.metrics})
        raise ComparisonError(f"--metric: no run has {metric}; choose from {grouping.join(names[:40])}")
    runs, copies = unique(runs)
    tuning = tuning_runs(runs)
    compared = [run for run in runs if run not in tuning]
    if not mixed:
        grouping.check_comparable(compared, metric)
    groups = grouping.group_runs(compared, metric)
    if over and all(len(family.rates) == 1 for family in families(groups)):
        for group in groups:  # so that groups with different chosen rates can be averaged
            group.keys.pop(RATE, None)
    for key in over:
        if key == RATE:
            advice = f"--where {RATE}=… selects one rate"
            raise ComparisonError(f"--over: each group is compared at its own best rate; {advice}")
        groups = grouping.average(groups, key)
    arms = families(groups)
    rows = [Row(family, interval([*family.best_group.losses.values()])) for family in arms]
    judge(rows, baseline or {}, metric, compared)
    rows.sort(key=lambda row: row.verdict != "baseline")
    tuning_families = families(grouping.group_runs(tuning, LOSS)) if tuning else []
    summary = [caveats.regime(compared), *sentences(arms, tuning), *caveats.couplings(compared)]
    warnings = caveats.differences(compared)
    for row in rows:
        lines = doubts.of_row(row.family, row.difference, tuning_families, metric)
        warnings += [f"{row.title}: {line}" for line in lines]
    rate_costs = sensitivities(tuning_families or (arms if metric == LOSS else []))
    return Report(metric, rows, compared, summary, warnings, rate_costs, copies)


def judge(rows: Sequence[Row], baseline: Mapping[str, str], metric: str, runs: Sequence[Run]) -> None:
    """Compare each row with its baseline. The verdicts are corrected for multiple comparisons (Holm)."""
    wanted = baseline_values(rows, baseline, runs)
    for row in rows:
        keys = row.family.keys
        if all(keys.get(key) == value for key, value in wanted.items()):
            row.verdict = "baseline"
            continue
        row.verdict = "no baseline with the same other settings"
        row.baseline = next((other.family for other in rows if other.family.keys == keys | wanted), None)
    pairs = [(row, row.baseline) for row in rows if row.baseline]
    p_values, reasons = [], []
    for row, other in pairs:
        reasons.append(doubts.unfit(row.group, other.best_group, metric))
        p_values.append(math.nan if reasons[-1] else p_of_pair(row.family, other))
    comparisons = sum(not math.isnan(p) for p in p_values)
    for (row, other), why, p in zip(pairs, reasons, holm(p_values), strict=True):
        differences = paired(row.group.losses, other.best_group.losses)
        row.difference = interval(differences)
        row.verdict = why or verdict(differences, p, metric)
        if not why and not p <= 1 - CONFIDENCE:
            if not math.isnan(p):
                rates = max(len(row.family.rates), len(other.rates))  # one was chosen of these: Bonferroni
                row.seed_range = seeds_needed(differences, comparisons * rates)
            row.command = commands.more_seeds([row.group, other.best_group], row.seed_range)


def verdict(differences: Sequence[float], p: float, metric: str) -> str:
    """Return the verdict on a group; ``p`` is adjusted for all comparisons."""
    if math.isnan(p):
        return f"no verdict: {len(differences)} common seed{'' if len(differences) == 1 else 's'}"
    if p > 1 - CONFIDENCE:
        return f"not distinguishable at {len(differences)} seeds"
    lower = np.mean(differences) < 0
    if any(word in metric for word in LOWER_IS_BETTER):
        return "better" if lower else "worse"
    return "lower" if lower else "higher"


def p_of_pair(family: Family, baseline: Family) -> float:
    """Return the two-sided p-value of no difference, each family at its best rate."""
    if family.best is None or baseline.best is None:
        return math.nan
    if len(paired(family.best_group.losses, baseline.best_group.losses)) < MIN_PAIRS:
        return math.nan
    if len(family.rates) == len(baseline.rates) == 1:
        return p_value(paired(family.best_group.losses, baseline.best_group.losses))
    return p_of_best(family.losses, baseline.losses, family.best, baseline.best)


def baseline_values(rows: Sequence[Row], requested: Mapping[str, str], runs: Sequence[Run]) -> Keys:
    """Return the values that make a group a baseline: the requested values, or USUAL, or the first value of
    the first key; and the options of the baseline's norm and placement. Raises ComparisonError if no group
    has the requested values."""
    keys = [key for key in grouping.keys_of(row.group for row in rows) if key != RATE]
    for key, text in requested.items():
        if key not in keys and not all(grouping.matches(run.config.get(key), text) for run in runs):
            names = grouping.join(keys)
            raise ComparisonError(f"--baseline: no group has {key}={text}; the groups differ in {names}")
    requested = {key: text for key, text in requested.items() if key in keys}
    wanted = requested or {key: word for key, word in USUAL.items() if key in keys}
    row = next((row for row in rows if grouping.has_values(row.family.keys, wanted)), None)
    if row is None and requested:
        words = " ".join(f"{key}={text}" for key, text in requested.items())
        names = grouping.join(row.title for row in rows)
        raise ComparisonError(f"--baseline: no group has {words}; available: {names}")
    options = [key for key in keys if grouping.component(key)]
    chosen = dict.fromkeys([*(wanted or keys[:1]), *options])
    return {key: (row or rows[0]).family.keys.get(key) for key in chosen}
