"""Show the table of a comparison in a terminal, as Markdown or as JSON; give its exit status.

The conclusion comes first, then the rows, what a verdict means, the warnings, and at most one command.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from typing_extensions import TypedDict

from data.errors import ConfigError
from study.files import Settings, Study
from study.runs import RunResult
from study.statistics import NO_BASELINE, Row

COLORS = {"better": "green", "worse": "red"}
EXIT = {"better": 0, "worse": 10, "equivalent": 11, "open": 12}
UNFIT = 13
# columns that a narrow terminal leaves out, beginning with the first
COSTS = ("bits/byte", "memory", "tokens/s", "steps to baseline")
SPARE = ("settings", *COSTS, "seeds to decide", "half the trials")
# reasons that are said more precisely elsewhere in the row or in the conclusion
SAID_OTHERWISE = ("a seed diverged", "it leaks", "causality not tested", "no verdicts in this study")
WRAPPED = {"arm": 18, "verdict": 14, "remarks": 14}  # minimum widths of the columns that may be wrapped

Cells = dict[str, str]  # by column
Trial = tuple[Settings, float | None]  # with the loss on the first tuning seed; None: it diverged


@dataclass(frozen=True)
class Table:
    """A comparison: its rows, and the sentences around them.

    Attributes:
        name: of the study, or the folders of the loose runs.
        conclusion: the sentence that comes first. caption: what the numbers are.
        notes: sentences below the table. warnings: one line each.
        advice: a sentence that says what to do next, and the command.
        runs: those that have ended, by title of the row and by seed.
        trials: the settings that were tried, by title of the row.
        study: what was declared; None: loose runs, which have no verdicts.
    """

    name: str
    conclusion: str
    caption: str
    rows: list[Row]
    notes: list[str]
    warnings: list[str]
    advice: tuple[str, str] | None
    runs: Mapping[str, Mapping[int, RunResult]]
    trials: Mapping[str, Sequence[Trial]]
    study: Study | None = None
    extended: bool = False


# ---------------------------------------------------------------------------------------------------
# In words


def short(title: str) -> str:
    """``norm=l1 placement=pre norm.eps=1`` -> ``l1 pre norm.eps=1``."""
    return " ".join(word.removeprefix("norm=").removeprefix("placement=") for word in title.split())


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def verdict(row: Row) -> str:
    """Return a row's verdict in words: first how many seeds diverged or collapsed, then the outcome or why
    there is none, then leaks."""
    n = len(row.seeds)
    parts = ["baseline"] if row.baseline is None and row.reason != NO_BASELINE else []
    parts += [f"{row.diverged} of {n} diverged"] if row.diverged else []
    parts += [f"{row.collapsed} of {n} collapsed"] if row.collapsed else []
    reason = f"{len(row.losses)} of {n} finished" if row.reason == "unfinished" else row.reason
    parts += [row.outcome] if row.outcome else []
    parts += [reason] if reason and reason not in SAID_OTHERWISE else []
    leaking = [mode for mode in row.leaks if mode != "not tested"]
    parts += [f"LEAKS in {' and '.join(leaking)}"] if leaking else []
    parts += ["causality not tested"] * ("not tested" in row.leaks)
    return "; ".join(parts)


def difference(row: Row) -> str:
    """Return ``-0.0995 [-0.1011, -0.0982]``, without the interval if there is none; "" for a baseline."""
    return number(row.difference, "+.4f") + ("" if row.low is None else f" [{row.low:+.4f}, {row.high:+.4f}]")


def ordered(rows: Sequence[Row], baselines: Sequence[str]) -> list[Row]:
    """Return each baseline, in the order of the titles ``baselines``, followed by the arms that are compared
    with it, the lowest mean first."""

    def place(row: Row) -> tuple[int, bool, float]:
        mean = math.inf if row.mean is None else row.mean
        return baselines.index(row.baseline or row.title), row.baseline is not None, mean

    return sorted(rows, key=place)


# ---------------------------------------------------------------------------------------------------
# As a table


def number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def cells(row: Row, declared: bool = True) -> Cells:
    """Return the cells of a row. Loose runs (``declared`` is False) have remarks in place of verdicts, and
    the number of seeds, which differs between them."""
    settings = [f"{key}={value}{' (edge)' * (key in row.edges)}" for key, value in row.settings.items()]
    return {
        "arm": short(row.title),
        **({} if declared else {"seeds": str(len(row.seeds))}),
        "loss" if declared else "mean": number(row.mean, ".4f"),
        "difference [low, high]": difference(row),
        "verdict" if declared else "remarks": verdict(row),
        "half the trials": number(row.half_the_trials, "+.4f"),
        "seeds to decide": number(row.seeds_needed, ",d"),
        "steps to baseline": number(row.steps_to_baseline, ",.0f"),
        "tokens/s": number(row.tokens_per_s, ",.0f"),
        "memory": number(row.memory and row.memory / 2**30, ".2f") + " GiB" * bool(row.memory),
        "bits/byte": number(row.bpb, ".4f"),
        "settings": " ".join(settings),
    }


def filled(table: Table) -> list[Cells]:
    """Return the cells of all rows, without the columns that are empty."""
    grid = [cells(row, declared=table.study is not None) for row in table.rows]
    empty = {column for column in grid[0] if column in SPARE and not any(row[column] for row in grid)}
    return [{column: text for column, text in row.items() if column not in empty} for row in grid]


def terminal() -> Console:
    """Return the terminal; if the output goes to a file or a pipe, a console of 200 columns."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_rows(table: Table, console: Console) -> None:
    """Print the table. If there is no room, leave out columns, and name them."""
    grid, left_out = filled(table), []
    for column in SPARE:
        if width(grid) <= console.width:
            break
        if column in grid[0]:
            left_out.append(column)
            grid = [{key: text for key, text in row.items() if key != column} for row in grid]
    has_room = width(grid) <= console.width  # otherwise, differences are wrapped, too
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in grid[0]:
        is_text = column in (*WRAPPED, "settings")
        drawn.add_column(
            Text(column),  # in a str, rich would read [low, high] as markup
            justify="left" if is_text else "right",
            no_wrap=not is_text and (has_room or column in ("loss", "mean")),
            overflow="fold",
            min_width=WRAPPED.get(column) if has_room else None,
        )
    for row, texts in zip(table.rows, grid, strict=True):
        drawn.add_row(*(Text(text, COLORS.get(row.outcome or "", "")) for text in texts.values()))
    console.print(Text(table.conclusion, "bold"))
    console.print(Text(table.caption, "dim"))
    console.print(drawn)
    for line in table.notes:
        console.print(Text(line, "dim"))
    if left_out:
        console.print(Text(f"Left out for lack of room: {', '.join(left_out)}.", "dim"))
    for warning in table.warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    if advice := table.advice:
        sentence, command = advice
        console.print(Text(sentence))
        print(f"  {command}", file=console.file)  # not wrapped, so that it can be copied


def width(grid: Sequence[Cells]) -> int:
    """Return the minimum width of a table whose arms and verdicts are wrapped."""
    widths = {column: max(len(column), *(len(row[column]) for row in grid)) for column in grid[0]}
    return sum(WRAPPED.get(column, wide) for column, wide in widths.items()) + 3 * len(widths)


def markdown(table: Table) -> str:
    """Return table.md."""
    grid = filled(table)
    lines = [table.conclusion, "", table.caption, "", row_of(grid[0]), row_of(["---"] * len(grid[0]))]
    lines += [row_of(row.values()) for row in grid]
    lines += ["", *(f"- {line}" for line in table.notes)]
    lines += [f"- warning: {warning}" for warning in table.warnings]
    if advice := table.advice:
        lines += ["", advice[0], "", f"    {advice[1]}"]
    return "\n".join(lines) + "\n"


def row_of(texts: Iterable[str]) -> str:
    escaped = (text.replace("|", r"\|") for text in texts)
    return f"| {' | '.join(escaped)} |"


# ---------------------------------------------------------------------------------------------------
# For programs


class Comparison(TypedDict):
    """What ``compare.py --json`` prints: the study, or null for loose runs, and a row for each arm."""

    schema: Literal["normgpt comparison"]
    version: Literal[1]  # grows if a key changes its meaning or is removed
    conclusion: str
    caption: str
    extended: bool
    study: Study | None
    arms: list[Row]
    warnings: list[str]


SCHEMA = TypeAdapter(Comparison)


def as_json(table: Table) -> dict[str, Any]:
    """Return a comparison as plain data, in the form of docs/compare.schema.json."""
    keys = ("conclusion", "caption", "extended", "study", "warnings")
    comparison: Any = {key: getattr(table, key) for key in keys} | {"arms": table.rows}
    comparison |= {"schema": "normgpt comparison", "version": 1}
    return dict(SCHEMA.dump_python(comparison, mode="json", by_alias=True))


def candidate(table: Table, arm: str) -> tuple[int, str]:
    """Return the exit status for an arm, and a line that says why.

    Args:
        arm: its title, in full or as in the table; or values of keys, such as ``norm=rmsnorm,placement=pre``.
            Of the arms with these values, the one with the fewest keys is meant.
    """
    compared = [row for row in table.rows if row.baseline]
    arms = table.study.arms if table.study else []
    same = {other: each.title for each in arms for other in each.same_as}
    arm = next((title for other, title in same.items() if arm in (other, short(other))), arm)
    found = [row for row in compared if arm in (row.title, short(row.title))]
    wanted = {(key, value) for key, _, value in (word.partition("=") for word in arm.split(","))}
    found = found or [row for row in compared if wanted <= {*row.keys.items()}]
    fewest = [row for row in found if len(row.keys) == min(len(other.keys) for other in found)]
    if len(fewest) != 1:
        titles = ", ".join(short(row.title) for row in compared)
        fits = "several arms" if fewest else "no arm other than a baseline"
        raise ConfigError(f"candidate: {arm} fits {fits}; name one of: {titles}")
    [row] = fewest
    status = EXIT.get(row.outcome or "", UNFIT)
    by = "" if row.difference is None else f" ({row.difference:+.4f})"
    return status, f"{short(row.title)}: {verdict(row)}{by}"


if __name__ == "__main__":  # python -m study.table > docs/compare.schema.json
    print(json.dumps(SCHEMA.json_schema(mode="serialization"), indent=1))
