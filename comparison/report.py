"""Report on runs: the table with its verdicts, and what a reader must know to interpret the table."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from comparison import caveats, doubts, tuning
from comparison import groups as grouping
from comparison.comparable import check_comparable, conditions
from comparison.decisions import Row, by_difference, judge
from comparison.duplicates import unique
from comparison.groups import RATE, ComparisonError
from comparison.load import Run
from comparison.rates import LOSS, Sensitivity, families, sensitivities
from comparison.roles import Arm, Roles, by_role, find_arms
from comparison.run_files import REPORT
from comparison.settings import Choice, choices
from comparison.verdicts import MATTERS, interval


@dataclass
class Report:
    """Everything that a comparison prints or writes."""

    metric: str
    rows: list[Row]  # the baseline first, then the lowest difference
    runs: list[Run]
    summary: list[str]  # the sentences above the table
    is_fair: bool  # each arm is at its own best settings, as far as the runs show
    how_chosen: list[str]  # the sentences of ``summary`` on how the settings were chosen
    warnings: list[str]  # what a reader must know before believing the table
    sensitivities: list[Sensitivity]
    comparisons: int  # for which the verdicts hold together
    choices: list[Choice]  # the settings of each arm, if they were tuned
    passed_over: list[str]

    @property
    def open_rows(self) -> list[Row]:
        """The rows that more seeds may settle, the one that needs the fewest first."""
        return sorted((row for row in self.rows if row.command), key=lambda row: row.missing)

    @property
    def keys(self) -> list[str]:
        return grouping.keys_of(row.group for row in self.rows)


def build_report(
    runs: Sequence[Run],
    metric: str | None = None,
    baseline: Mapping[str, str] | None = None,
    over: Sequence[str] = (),
    mixed: bool = False,
    matters: float = MATTERS,
    where: Sequence[str] = (),
) -> Report:
    """Compare runs that have ended, by the last value of a metric.

    Args:
        metric: default: val/full_loss, or val/report_loss if settings were chosen by val/select_loss.
        baseline: values of keys; a group's baseline has these values and is otherwise the same as the group.
        over: keys to average over.
        mixed: allow runs to differ in data, length or evaluation.
        matters: the smallest difference of losses that matters, in nats.
        where: conditions, such as ``norm=none``, on the runs that are shown. Hidden runs of the same sweeps
            still count in the verdicts, so that nobody finds a better verdict by hiding runs.

    Raises:
        ComparisonError: the runs are not comparable, or no run has the metric, key or baseline.
    """
    runs, copies = unique(runs)
    all_roles = by_role(runs)
    if not all_roles.compared:
        problem = "all of these runs are trials, which chose settings"
        raise ComparisonError(f"{problem}; wait for the compared runs, or rerun the sweep")
    compared = all_roles.compared
    for condition in where:
        compared = grouping.select(compared, condition)
    roles = all_roles.showing(compared)
    metric = checked_metric(metric, roles)
    if not mixed:
        check_comparable(compared, metric)
    rows, comparisons, averaged = judged_rows(roles, metric, baseline or {}, over, matters)
    if hidden := hidden_siblings(all_roles, compared, metric):
        together = all_roles.showing([*compared, *hidden])
        with suppress(ComparisonError):  # the hidden runs may have other values of an ``over`` key
            all_rows, all_comparisons, _ = judged_rows(together, metric, baseline or {}, over, matters)
            adopt_verdicts(rows, all_rows, hidden, roles)
            comparisons = max(comparisons, all_comparisons)
    by_rate = [row.family for row in rows]
    arms = find_arms(by_rate, roles)
    tried = families(grouping.group_runs(roles.trials, LOSS)) if roles.trials else []
    is_fair, how_chosen = tuning.sentences(by_rate, arms, roles, metric)
    summary = [caveats.regime(compared), *averaged, *how_chosen, *caveats.couplings(compared)]
    lines = [(row.title, doubts.of_row(row.family, row.difference, tried, metric, roles)) for row in rows]
    warnings = [
        *caveats.differences(compared, "the runs"),
        *caveats.differences(roles.trials, "the trials"),
        *merged([*lines, *((arm.title, tuning.edges(arm)) for arm in arms)]),
    ]
    rate_costs = sensitivities(tried or (by_rate if metric == LOSS else []))
    chosen = choices(rows, arms, metric)
    passed_over = [*copies, *left_out(len(roles.others), len(all_roles.pending))]
    about = (summary, is_fair, how_chosen, warnings)
    return Report(metric, rows, compared, *about, rate_costs, comparisons, chosen, passed_over)


def left_out(others: int, pending: int) -> list[str]:
    """Return lines on runs that are neither compared nor trials of a compared run."""
    of_others = "runs of another tuning, or at settings that no trials chose, which are not compared"
    counts = {of_others: others, "trials of tunings that have no compared run yet": pending}
    return [f"{words}: {count}" for words, count in counts.items() if count]


def merged(warnings: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Return the warnings of rows, each with the title of its row; the same warning of several rows once."""
    titles: dict[str, list[str]] = defaultdict(list)
    for title, lines in warnings:
        for line in lines:
            titles[line].append(title)
    named = {line: [*dict.fromkeys(rows)] for line, rows in titles.items()}
    return [f"{grouping.join(rows)}{', each' * (len(rows) > 1)}: {line}" for line, rows in named.items()]


def checked_metric(metric: str | None, roles: Roles) -> str:
    """Return the metric that is compared: the requested one, or a loss. Raises ComparisonError if no compared
    run has it."""
    metric = metric or (REPORT if is_chosen_on_a_half(roles) else LOSS)
    have_diverged = all(run.diverged for run in roles.compared) and metric in (LOSS, REPORT)
    if have_diverged or any(metric in run.metrics for run in roles.compared):
        return metric
    names = sorted({name for run in roles.compared for name in run.metrics})
    raise ComparisonError(f"--metric: no run has {metric}; choose from {grouping.join(names[:40])}")


def judged_rows(
    roles: Roles, metric: str, baseline: Mapping[str, str], over: Sequence[str], matters: float
) -> tuple[list[Row], int, list[str]]:
    """Return a row per group of the compared runs, the number of comparisons for which their verdicts hold,
    and sentences on the keys that are averaged over. The baseline is first, then the lowest difference; if
    there are several baselines, these are first, and the rows are sorted by their keys."""
    groups = grouping.group_runs(roles.compared, metric)
    hide_chosen_settings(groups, roles, with_rate=bool(over))
    averaged = []
    for key in over:
        if key == RATE:
            advice = f"--where {RATE}=… selects one rate, without a verdict"
            raise ComparisonError(f"--over: each group is compared at its own best rate; {advice}")
        groups, sentence = grouping.average(groups, key)
        averaged.append(sentence)
    rows = [Row(family, interval([*family.best_group.losses.values()])) for family in families(groups)]
    comparisons = judge(rows, baseline, metric, roles.compared, matters)
    if sum(row.outcome == "baseline" for row in rows) == 1:
        rows.sort(key=by_difference)
    rows.sort(key=lambda row: row.outcome != "baseline")
    return rows, comparisons, averaged


def hidden_siblings(roles: Roles, shown: Sequence[Run], metric: str) -> list[Run]:
    """Return the compared runs that are not shown, but are comparable with those shown, and of the same
    sweeps or the same arms."""
    planned = {arm for run in shown for arm in arms_planned_with(run)}
    arms = {*map(roles.likeness, shown)}
    properties = conditions(metric).values()
    alike = {repr([value_of(run) for value_of in properties]) for run in shown}
    seen = {id(run) for run in shown}
    return [
        run
        for run in roles.compared
        if id(run) not in seen
        and (planned & arms_planned_with(run) or roles.likeness(run) in arms)
        and repr([value_of(run) for value_of in properties]) in alike
    ]


def arms_planned_with(run: Run) -> set[str]:
    return {*(run.environment.get("plan") or {}).get("arms", [])}


def adopt_verdicts(rows: Sequence[Row], all_rows: Sequence[Row], hidden: Sequence[Run], roles: Roles) -> None:
    """Give each row the verdict that it has among the rows of all runs, in which the variances of all arms
    are moderated together. A row gets none if runs of its arm or its baseline are hidden."""

    def compared_by(row: Row) -> tuple[set[int], set[int]]:
        others = row.baseline.runs if row.baseline else []
        return {id(run) for run in row.family.runs}, {id(run) for run in others}

    partly_hidden = {roles.likeness(run) for run in hidden}
    for row in rows:
        if row.outcome == "baseline":
            continue
        twin = next((other for other in all_rows if compared_by(other) == compared_by(row)), None)
        if twin:
            row.verdict, row.outcome, row.planned = twin.verdict, twin.outcome, twin.planned
            row.seed_range, row.command, row.missing = twin.seed_range, twin.command, twin.missing
            continue
        pair = [*row.family.runs, *(row.baseline.runs if row.baseline else [])]
        if row.difference and partly_hidden & {*map(roles.likeness, pair)}:
            row.verdict, row.outcome = "no verdict: --where hides runs of it or of its baseline", "unfit"
            row.seed_range, row.command = None, ""


def is_chosen_on_a_half(roles: Roles) -> bool:
    """Return True if some settings were chosen, and all compared runs that finished have the loss on the
    half of the text that had no part in the choice."""
    finished = [run for run in roles.compared if not run.diverged]
    return roles.are_tuned and all(REPORT in run.metrics for run in finished)


def hide_chosen_settings(groups: Sequence[grouping.Group], roles: Roles, with_rate: bool) -> None:
    """Remove the tuned keys from the keys of groups, so that arms at different settings are compared; the
    learning rate only ``with_rate``, to average over other keys. A key that only some arms tuned, or of which
    an arm has several values, stays; in an arm that tuned it, the only value, or that of the best settings,
    becomes ``tuned``."""
    values: dict[tuple[str, tuple[str, int]], set[object]] = defaultdict(set)  # of a key in an arm
    arms = [(roles.likeness(group.runs[0]), group.runs[0].config["train.steps"]) for group in groups]
    for key in roles.keys:
        for arm, group in zip(arms, groups, strict=True):
            values[key, arm].add(group.runs[0].config.get(key))
    several = {key for (key, _), distinct in values.items() if len(distinct) > 1}
    tuned = [roles.tuned.get(group.runs[0].group, frozenset()) for group in groups]  # keys
    for key in roles.keys[0 if with_rate else 1 :]:
        if key not in several and all(key in keys for keys in tuned if keys):
            for group in groups:
                group.keys.pop(key, None)
        elif key != RATE:
            for arm, group, keys in zip(arms, groups, tuned, strict=True):
                is_only = len(values[key, arm]) == 1
                if key in keys and key in group.keys and (is_only or is_at_its_best(group, roles)):
                    group.keys[key] = "tuned"


def is_at_its_best(group: grouping.Group, roles: Roles) -> bool:
    """Return True if the settings of a group are the best of its trials."""
    arm = Arm(group.keys, group.runs, roles.related(group.runs, roles.trials), [], roles)
    return {*arm.settings} <= {*arm.best()}
