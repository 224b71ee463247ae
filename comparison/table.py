"""The table, cell by cell: the same words in the terminal, in Markdown, in CSV and on the page."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group as Lines
from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from comparison import caveats
from comparison.groups import RATE, shown, title
from comparison.report import Report, Row
from comparison.verdicts import Interval

Cells = dict[str, str]  # column -> what stands there


def number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "—"


def with_interval(found: Interval | None, form: str = ".4f") -> str:
    """mean ± half of its 95 % interval."""
    if found is None or not math.isfinite(found.mean):
        return "—"
    half = f" ± {format(found.half, form.lstrip('+'))}" if math.isfinite(found.half) else ""
    return format(found.mean, form) + half


def megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.0f} MB" if math.isfinite(n_bytes) else "—"


def verdict(row: Row) -> str:
    if row.needed is None:
        return row.verdict
    low, high = (f"{n:,}" if n <= 1000 else "over 1,000" for n in row.needed)
    return f"{row.verdict}; {low if low == high else f'{low} to {high}'} may settle it"


def cells(report: Report) -> list[Cells]:
    """A dict for each row. Columns in which nothing is to be said are left out."""
    found = []
    form = ".4f" if "loss" in report.metric else ",.4g"
    with_rates = any(len(row.family.rates) > 1 for row in report.rows)
    for row in report.rows:
        cost, group = caveats.cost(row.group), row.group
        keys = {
            key.removeprefix("model.").removeprefix("train."): shown(v) for key, v in row.family.keys.items()
        }
        rate = {
            "best rate" if with_rates else "rate": "—" if row.family.best is None else f"{row.family.best:g}"
        }
        found.append(
            keys
            | (rate if with_rates or RATE in row.group.keys else {})
            | {
                "seeds": str(len(group.seeds)),
                report.metric: with_interval(row.loss, form) if not group.diverged else "—",
                "difference": with_interval(row.difference, f"+{form}"),
                "verdict": verdict(row),
                "diverged": f"{len(group.diverged)} of {len(group.seeds)}" if group.diverged else "",
                "gap": number(cost["gap"], "+.3f"),
                "tokens/s": number(cost["tokens/s"], ",.0f"),
                "memory": megabytes(cost["memory"]),
                "parameters": f"{cost['parameters']:,}",
                "leaks": "LEAKS" if cost["leaks"] else "",
            }
        )
    columns = dict.fromkeys(column for row in found for column in row)
    used = [column for column in columns if any(row.get(column) for row in found)]
    return [{column: row.get(column, "—") for column in used} for row in found]


def notes(report: Report) -> list[str]:
    """How to read the table."""
    said = ["± is half of a 95 % t-interval over seeds. A difference is to the baseline and paired by seed."]
    if sum(row.baseline is not None for row in report.rows) > 1:
        said.append(
            "The verdicts hold together: the chance that any of them is false is at most 5 % (Holm), so one "
            "may be open although its own interval is on one side of 0."
        )
    if any(row.needed for row in report.rows):
        said.append(
            "That is for one look. Adding seeds until a verdict comes finds false ones more often: decide "
            "on a number before, or take new seeds only (--where seed=…)."
        )
    said.append("gap: validation minus training loss. tokens/s: median. memory: the most of any run.")
    return said


def in_terminal(report: Report) -> RenderableType:
    """The table with all that must be said around it."""
    parts: list[RenderableType] = [Text(said) for said in report.said]
    parts.append(lined_up(cells(report), {*report.keys, "verdict", "leaks"}))
    parts += [Text(note, "dim") for note in notes(report)]
    if report.sensitivities:
        parts += [Text("\nMean loss by learning rate:"), lined_up(sensitivity(report), {""})]
    parts += [Text(f"warning: {warning}", "yellow") for warning in report.warnings]
    parts += [Text(f"passed over: {folder}", "dim") for folder in report.passed_over]
    undecided = [row for row in report.rows if row.command]
    if undecided:
        parts.append(Text(f"more seeds for {undecided[0].title}:"))
        parts.append(Text(f"  {undecided[0].command}"))
    if len(undecided) > 1:
        parts.append(Text(f"  (for {len(undecided) - 1} more: on the page)"))
    return Lines(*parts)


def lined_up(rows: Sequence[Cells], words: set[str]) -> Table:
    """For a terminal. Columns of ``words`` are aligned left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in rows[0]:
        justify: JustifyMethod = "left" if column in words else "right"
        table.add_column(Text(column), justify=justify, no_wrap=column != "verdict")
    colors = {"better": "green", "worse": "red"}
    for row in rows:
        table.add_row(*(Text(cell, colors.get(cell, "")) for cell in row.values()))
    return table


def sensitivity(report: Report) -> list[Cells]:
    """A dict for each family: its mean loss at each learning rate, and its sensitivity to it."""
    return [
        {"": title(found.family.keys)}
        | {f"{rate:g}": f"{loss:.3f}" for rate, loss in zip(found.rates, found.losses, strict=True)}
        | {"LR sensitivity": with_interval(found.value, ".3f")}
        for found in report.sensitivities
    ]


def markdown(rows: Sequence[Cells]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def write_csv(file: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)
