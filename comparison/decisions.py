"""Judge the rows of a table: find their baselines, and give the verdicts, which hold together.

comparison/verdicts.py has the rule; comparison/plans.py says what was planned before there was a result.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from comparison import commands, doubts
from comparison import groups as grouping
from comparison.groups import CODE, RATE, ComparisonError, Group, Keys, title
from comparison.load import Run
from comparison.plans import STARTS, USUAL, family_size, in_order, planned_seeds
from comparison.rates import Family
from comparison.verdicts import (
    ALL_THE_SAME,
    LOOKS,
    Interval,
    decide,
    interval,
    looks,
    looks_needed,
    next_look,
    paired,
)

# open: not decided, more seeds may decide if there is a command; unfit: no number of seeds can
Outcome = Literal["baseline", "better", "worse", "lower", "higher", "equivalent", "diverged", "open", "unfit"]
LOWER_IS_BETTER = ("loss", "bpb")


@dataclass
class Row:
    """A group, at its best learning rate if it has several, compared with its baseline."""

    family: Family
    loss: Interval
    baseline: Family | None = None
    difference: Interval | None = None  # from the baseline, over common seeds
    verdict: str = ""
    outcome: Outcome = "unfit"  # the verdict in one word
    planned: int = 0  # the number of seeds that a plan had before there was a result; 0 without a plan
    seed_range: tuple[int, int] | None = None  # (fewest, most) seeds that may lead to a verdict
    command: str = ""  # the command that trains more seeds
    missing: int = 0  # the fewest seeds to add before a verdict is possible, or likely

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


def by_difference(row: Row) -> float:
    """Return what sorts rows by their difference from the baseline, those without one last."""
    return row.difference.mean if row.difference and row.difference.n else math.inf


def judge(
    rows: Sequence[Row], baseline: Mapping[str, str], metric: str, runs: Sequence[Run], matters: float
) -> int:
    """Compare each row with its baseline. Return the number of comparisons for which the verdicts hold.

    Args:
        matters: the smallest difference of losses that matters, in nats.
    """
    wanted = baseline_values(rows, baseline, runs)
    usual_start = {key: STARTS[key] for key in grouping.keys_of(row.group for row in rows) if key in STARTS}
    for row in rows:
        keys = row.family.keys
        if all(keys.get(key) == value for key, value in wanted.items()):
            row.verdict = row.outcome = "baseline"
            continue
        alike = [keys | wanted, keys | usual_start | wanted]
        if len(rates_of_versions(row, rows)) == 1:
            alike += [without_code(each) for each in alike if CODE not in wanted]
        others = [other.family for other in rows if other is not row]
        families = (other for each in alike for other in others if other.keys == each)
        row.baseline = next(families, None)
        versions = sum(without_code(other.keys) in alike for other in others)
        row.verdict = "no baseline with the same other settings"
        if versions > 1:
            row.verdict = (
                f"its baseline has {versions} versions of its code; name one with --baseline …,code=…"
            )
    pairs = [(row, row.baseline) for row in rows if row.baseline]
    baselines = {id(other): other.runs for _, other in pairs}
    is_chosen = wanted != baseline_values(rows, {}, runs)
    arms = [row.family.runs for row in rows]
    comparisons = family_size(arms, [*baselines.values()], len(pairs), is_chosen)
    by_plan = defaultdict(list)
    for row, other in pairs:
        row.difference = interval(paired(row.group.losses, other.best_group.losses))
        row.verdict = doubts.unfit(row.family, other, metric)
        planned = planned_seeds(row.family.runs, other.runs)
        row.planned = len(planned)
        if row.group.diverged:
            row.outcome = "diverged"
        if not row.verdict:
            by_plan[id(other), *planned].append((row, other))
    for (_, *planned), members in by_plan.items():
        judge_together(members, planned, comparisons, metric, matters)
    return comparisons


def without_code(keys: Keys) -> Keys:
    return {key: value for key, value in keys.items() if key != CODE}


def rates_of_versions(row: Row, rows: Sequence[Row]) -> set[float]:
    """Return the learning rates of an arm in all versions of its norm's code."""
    versions = [each for each in rows if without_code(each.family.keys) == without_code(row.family.keys)]
    return {rate for version in versions for rate in version.family.rates}


def judge_together(
    pairs: Sequence[tuple[Row, Family]],
    planned: Sequence[int],
    comparisons: int,
    metric: str,
    matters: float,
) -> None:
    """Give the verdicts on rows that have one baseline, whose noise is in the variances of all of them, and
    the same ``planned`` seeds; [] without a plan."""
    later = {seed for row, _ in pairs for seed in row.used} - {*planned}
    runs = [run for row, other in pairs for run in (*row.family.runs, *other.runs)]
    seeds = [*planned, *in_order(later, runs)]
    table = np.full((1, len(pairs), len(seeds)), math.nan)
    for i, (row, other) in enumerate(pairs):
        losses, baseline_losses = row.group.losses, other.best_group.losses
        for seed in row.used:
            table[0, i, seeds.index(seed)] = losses[seed] - baseline_losses[seed]
    matters = matters if "loss" in metric else 0
    decision = decide(table, len(planned) or None, comparisons, matters)
    for (row, _), differences, verdict, reason in zip(
        pairs, table[0], decision.verdict[0], decision.reason[0], strict=True
    ):
        row.outcome = in_one_word(verdict, metric)
        row.verdict = f"equivalent (within {matters:g})" if verdict == "equivalent" else row.outcome
        values = differences[np.isfinite(differences)]
        if reason == ALL_THE_SAME and not values.any():
            row.outcome, row.verdict = "equivalent", "equivalent (identical)"
        elif reason == ALL_THE_SAME and np.abs(values).max() < matters:
            row.outcome, row.verdict = "equivalent", f"equivalent (within {matters:g})"
        elif verdict == "open":
            say_why_open(row, str(reason), values, planned, comparisons, matters)


def say_why_open(
    row: Row,
    reason: str,
    differences: Sequence[float],
    planned: Sequence[int],
    comparisons: int,
    matters: float,
) -> None:
    """Say why a row has no verdict, how many seeds may bring one, and which command trains them."""
    assert row.baseline
    count, to_come, plan = len(row.used), len({*planned} - {*row.used}), len(planned) or None
    row.verdict = {
        "too few pairs": f"no verdict: {count} common seed{'s' * (count != 1)}",
        "planned pairs are missing": f"no verdict: {len(planned) - to_come} of the {plan} planned seeds",
        "not distinguishable": f"not distinguishable at {count} seeds",
    }.get(reason, f"no verdict: {reason}")
    least = next_look(count, plan)
    if reason == ALL_THE_SAME:
        row.outcome = "unfit"  # no number of seeds decides
        return
    if reason == "planned pairs are missing":
        least = count + to_come
    elif least is None:
        row.verdict = f"not distinguishable at {looks(plan)[-1][0]} seeds, the most that are judged"
        return
    elif reason == "not distinguishable":
        row.seed_range = looks_needed(differences, plan, comparisons, matters)
        least = min(row.seed_range[0], LOOKS[-1]) if row.seed_range else least
    row.missing = least - count
    row.command = commands.more_seeds([row.group, row.baseline.best_group], least, planned)


def in_one_word(verdict: str, metric: str) -> Outcome:
    """Return a verdict of comparison/verdicts.py, in which a lower loss is a better one."""
    is_loss = any(word in metric for word in LOWER_IS_BETTER)
    words: dict[str, Outcome] = {
        "lower": "better" if is_loss else "lower",
        "higher": "worse" if is_loss else "higher",
        "equivalent": "equivalent",
        "open": "open",
    }
    return words[verdict]


def baseline_values(rows: Sequence[Row], requested: Mapping[str, str], runs: Sequence[Run]) -> Keys:
    """Return the values that make a group a baseline: the requested values, or those of USUAL that groups
    have, or the first value of the first key; and the options of the baseline's norm and placement. Raises
    ComparisonError if no group has the requested values."""
    keys = [key for key in grouping.keys_of(row.group for row in rows) if key != RATE]
    for key, text in requested.items():
        if key not in keys and not all(grouping.matches(run.config.get(key), text) for run in runs):
            names = grouping.join(keys)
            raise ComparisonError(f"--baseline: no group has {key}={text}; the groups differ in {names}")
    requested = {key: text for key, text in requested.items() if key in keys}
    usual = {
        key: word for key, word in USUAL.items() if any(row.family.keys.get(key) == word for row in rows)
    }
    wanted = requested or usual
    row = next((row for row in rows if grouping.has_values(row.family.keys, wanted)), None)
    if row is None and requested:
        words = " ".join(f"{key}={text}" for key, text in requested.items())
        names = grouping.join(row.title for row in rows)
        raise ComparisonError(f"--baseline: no group has {words}; available: {names}")
    named = [*(wanted or keys[:1])]
    others = {*keys} - {*named}  # of a norm that is not named, a baseline has the options of its own row
    options = [key for key in keys if (part := grouping.component(key)) and part not in others]
    chosen = dict.fromkeys([*named, *options])
    return {key: (row or rows[0]).family.keys.get(key) for key in chosen}
