"""Report on runs: the table with its verdicts, and what a reader must know to interpret the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from comparison import caveats, doubts
from comparison import groups as grouping
from comparison.decisions import Row, judge
from comparison.duplicates import unique
from comparison.groups import RATE, ComparisonError
from comparison.load import Run
from comparison.rates import LOSS, Sensitivity, families, sensitivities
from comparison.tuning import sentences, tuning_runs
from comparison.verdicts import MATTERS, interval


@dataclass
class Report:
    """Everything that a comparison prints or writes."""

    metric: str
    rows: list[Row]  # sorted by their keys, the baseline first
    runs: list[Run]
    summary: list[str]  # the sentences above the table
    warnings: list[str]  # what a reader must know before believing the table
    sensitivities: list[Sensitivity]
    comparisons: int  # for which the verdicts hold together
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
    matters: float = MATTERS,
) -> Report:
    """Compare runs that have ended, by the last value of a metric.

    Args:
        baseline: values of keys; a group's baseline has these values and is otherwise the same as the group.
        over: keys to average over.
        mixed: allow runs to differ in data, length or evaluation.
        matters: the smallest difference of losses that matters, in nats.

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
    comparisons = judge(rows, baseline or {}, metric, compared, matters)
    rows.sort(key=lambda row: row.verdict != "baseline")
    tuning_families = families(grouping.group_runs(tuning, LOSS)) if tuning else []
    summary = [caveats.regime(compared), *sentences(arms, tuning), *caveats.couplings(compared)]
    warnings = caveats.differences(compared)
    for row in rows:
        lines = doubts.of_row(row.family, row.difference, tuning_families, metric)
        warnings += [f"{row.title}: {line}" for line in lines]
    rate_costs = sensitivities(tuning_families or (arms if metric == LOSS else []))
    return Report(metric, rows, compared, summary, warnings, rate_costs, comparisons, copies)
