"""A report for programs: JSON of a documented form, and an exit status.

The form is ``SCHEMA``; docs/programs.md describes it. Its version grows if a key changes its meaning or goes.
"""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from comparison.decisions import Outcome, Row
from comparison.groups import RATE, ComparisonError, has_values, join, key_values, matches, title
from comparison.report import Report
from comparison.verdicts import Interval


class ExitStatus(IntEnum):
    """The exit status of ``compare.py --candidate``; 1 and 2 are errors."""

    BETTER = 0
    NOT_BETTER = 10
    EQUIVALENT = 11
    CANNOT_TELL = 12
    UNFIT = 13  # leaks, or cannot be compared


EXIT_STATUS: Mapping[Outcome, ExitStatus] = {
    "better": ExitStatus.BETTER,
    "worse": ExitStatus.NOT_BETTER,
    "diverged": ExitStatus.NOT_BETTER,
    "equivalent": ExitStatus.EQUIVALENT,
    "open": ExitStatus.CANNOT_TELL,
}


@with_config(ConfigDict(extra="forbid"))
class Mean(TypedDict):
    """A mean over seeds with its 95 % t-interval, which a single seed lacks."""

    mean: float
    low: float | None
    high: float | None
    seeds: list[int]


@with_config(ConfigDict(extra="forbid"))
class Arm(TypedDict):
    """A row of the table.

    Attributes:
        keys: what distinguishes the arm from the others, such as norm and placement.
        values: the metric by seed, of the runs that finished.
        difference: from the baseline, paired by seed.
        outcome: the verdict in one word; ``verdict`` says it as the table does.
        planned: the number of seeds that was planned before there was a result; 0 without a plan.
        command: what trains the seeds that may settle an open comparison; None if none may.
    """

    title: str
    keys: dict[str, Any]
    learning_rate: float | None
    values: dict[int, float]
    diverged: list[int]
    mean: Mean | None
    baseline: str | None
    difference: Mean | None
    outcome: Outcome
    verdict: str
    planned: int
    command: str | None
    leaks: bool
    causality: list[str]


@with_config(ConfigDict(extra="forbid"))
class Comparison(TypedDict):
    """The table of compare.py and the sentences around it; its verdicts hold together for ``comparisons``
    comparisons."""

    version: Literal[1]
    metric: str
    comparisons: int
    arms: list[Arm]
    summary: list[str]
    warnings: list[str]
    passed_over: list[str]


SCHEMA = TypeAdapter(Comparison)


def comparison(report: Report) -> Comparison:
    """Return a report as data."""
    return {
        "version": 1,
        "metric": report.metric,
        "comparisons": report.comparisons,
        "arms": [arm(row) for row in report.rows],
        "summary": report.summary,
        "warnings": report.warnings,
        "passed_over": report.passed_over,
    }


def arm(row: Row) -> Arm:
    group = row.group
    rates = {run.config[RATE] for run in group.runs}  # several in a mean over another key
    return {
        "title": row.title,
        "keys": dict(row.family.keys),
        "learning_rate": row.family.rate if len(rates) == 1 else None,
        "values": dict(group.values),
        "diverged": sorted(group.diverged),
        "mean": mean(row.loss, sorted(group.losses)),
        "baseline": title(row.baseline.keys) if row.baseline else None,
        "difference": mean(row.difference, row.used) if row.difference else None,
        "outcome": row.outcome,
        "verdict": row.verdict,
        "planned": row.planned,
        "command": row.command or None,
        "leaks": group.leaks,
        "causality": sorted({run.causality for run in group.runs}),
    }


def mean(interval: Interval, seeds: list[int]) -> Mean | None:
    if not math.isfinite(interval.mean):
        return None
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    return {"mean": interval.mean, "low": low, "high": high, "seeds": seeds}


def status_of(report: Report, candidate: str) -> tuple[ExitStatus, str]:
    """Return the exit status for an arm, and a line that says why.

    Args:
        candidate: the arm's title, or values of keys, ``norm=rmsnorm,placement=pre``. Of several arms that
            have them, it is the one with nothing else in its title.

    Raises:
        ComparisonError: this is not exactly one arm besides the baseline.
    """
    compared = [row for row in report.rows if row.verdict != "baseline"]
    found = [row for row in compared if row.title == candidate]
    if not found and "=" in candidate:
        found = named(report, compared, candidate)
    if len(found) > 1:
        words = {id(row): {*row.title.split()} for row in found}
        found = [row for row in found if all(words[id(row)] <= words[id(other)] for other in found)]
    if len(found) != 1:
        titles = join(f'"{row.title}"' for row in compared)
        raise ComparisonError(
            f"--candidate: {candidate} is not one arm beside the baseline; name one of {titles}"
        )
    [row] = found
    difference = f" ({row.difference.mean:+.4f})" if row.difference and row.difference.n else ""
    leaks = " LEAKS" if row.group.leaks else ""
    status = ExitStatus.UNFIT if leaks else EXIT_STATUS.get(row.outcome, ExitStatus.UNFIT)
    return status, f"{row.title}: {row.verdict}{difference}{leaks}"


def named(report: Report, rows: Sequence[Row], candidate: str) -> list[Row]:
    """Return the rows that have these values of keys. Raises ComparisonError if a key has no value."""
    values = key_values(candidate)
    varied = {key for row in report.rows for key in row.family.keys}
    common = {
        key
        for key, text in values.items()
        if key not in varied and all(matches(run.config.get(key), text) for run in report.runs)
    }
    wanted = {key: text for key, text in values.items() if key not in common}
    return [row for row in rows if has_values(row.family.keys, wanted)]
