"""Print a comparison in a terminal of any width."""

from collections.abc import Sequence

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from comparison.moderation import POOLED_ARMS
from comparison.plans import MIN_PAIRS
from comparison.rates import LOSS
from comparison.report import Report
from comparison.table import (
    SPARE,
    TO_BASELINE,
    Cells,
    cells,
    column_of,
    folded,
    sensitivity,
    settings,
    settings_note,
)
from comparison.verdicts import looks

ARM, VERDICT = 20, 16  # characters that an arm and a verdict need at least; they are wrapped


def render(report: Report, width: int) -> RenderableType:
    """Return the table for a terminal of ``width`` characters, with the sentences above and below it. Print
    it with crop=False: commands are not wrapped, so that they can be copied."""
    parts: list[RenderableType] = [Text(line) for line in report.summary]
    parts += narrowed(report, width)
    parts += [Text(note, "dim") for note in notes(report)]
    if report.choices:
        parts += [Text("\nThe settings of each arm:"), rich_table(settings(report), {""})]
        parts.append(Text(settings_note(report), "dim"))
    if report.sensitivities:
        parts += [
            Text(f"\nMean {LOSS} by learning rate, at most the initial loss:"),
            rich_table(sensitivity(report), {""}),
        ]
    parts += [Text(f"warning: {warning}", "yellow") for warning in report.warnings]
    parts += [Text(f"passed over: {folder}", "dim") for folder in report.passed_over]
    if undecided := report.open_rows:
        parts.append(Text(f"more seeds for {undecided[0].title}:"))
        parts.append(Text(f"  {undecided[0].command}", no_wrap=True, overflow="ignore"))
    if len(undecided) > 1:
        parts.append(Text(f"  (the page has the commands for {len(undecided) - 1} more)"))
    return Lines(*parts)


def notes(report: Report) -> list[str]:
    """Return sentences on how to read the table."""
    lines = [
        "± is half of a 95 % t-interval over seeds. A difference is from the baseline and paired by seed; "
        "seeds counts the pairs."
    ]
    if any(row.difference and row.difference.n >= MIN_PAIRS for row in report.rows):
        lines.append(
            "The verdicts hold together: the chance that any is false is about 5 %, over "
            f"{report.comparisons} comparison{'s' * (report.comparisons != 1)} and however often you add "
            "seeds and look again. So a row may have no verdict although its own interval excludes 0."
        )
        if report.comparisons >= POOLED_ARMS:  # some of which may be of other baselines, or hidden
            lines.append(
                "Where the noise of groups differs fivefold, the chance of a false verdict is up to 9 % at 3 "
                "seeds, 7 % at 5."
            )
        planned = sorted({row.planned for row in report.rows if row.difference})
        plan = " or ".join(f"{number or 'no number of'} seeds" for number in planned)
        sizes = sorted({size for number in planned for size, _ in looks(number)})
        lines.append(
            f"Planned before the first run: {plan}. A verdict is possible at "
            f"{', '.join(map(str, sizes))} seeds."
        )
    if any(row.seed_range for row in report.rows):
        lines.append('"May settle it": if the difference is as large as seen.')
    lines.append("gap: validation minus training loss. tokens/s: median. memory: the largest of any run.")
    return lines


def narrowed(report: Report, width: int) -> list[RenderableType]:
    """Return the table of a terminal. Where there is no room, columns are left out, which a line then says,
    or folded: those of the keys into one, and leaks into the verdicts."""
    rows, dropped = cells(report), {*TO_BASELINE}
    for column in (*SPARE, "arm", "leaks", "rate", "best rate", report.metric, "seeds", None):
        shown = [{name: text for name, text in row.items() if name not in dropped} for row in rows]
        if column is None or natural_width(shown) <= width:
            break
        if column == "arm":
            rows = folded(report, rows)
        elif column == "leaks":  # the verdict says who has diverged
            rows = [row | {"verdict": with_leaks(row)} for row in rows]
            dropped |= {"leaks", "diverged"}
        else:
            dropped.add(column)
    missing = [name for name in rows[0] if name in dropped - {*TO_BASELINE, "leaks", "diverged"}]
    line = Text(f"left out for lack of room: {', '.join(missing)}", "dim")
    return [result_table(report, shown), *[line] * bool(missing)]


def with_leaks(row: Cells) -> str:
    doubt = row.get("leaks", "—").strip("—")
    return f"{row['verdict']}, {doubt}" if doubt else row["verdict"]


def natural_width(rows: Sequence[Cells]) -> int:
    """Return the width of a table in which arms and verdicts are wrapped."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    wrapped = {name: least for name, least in (("arm", ARM), ("verdict", VERDICT)) if name in widths}
    return sum((widths | wrapped).values()) + 3 * len(widths)


def result_table(report: Report, rows: Sequence[Cells]) -> Table:
    return rich_table(rows, {"arm", *map(column_of, report.keys), "verdict", "leaks"})


def rich_table(rows: Sequence[Cells], text_columns: set[str]) -> Table:
    """Return a table for a terminal, with ``text_columns`` aligned left and the others right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in rows[0]:
        is_text = column in text_columns
        table.add_column(
            Text(column),
            justify="left" if is_text else "right",
            no_wrap=column not in ("arm", "verdict"),
            overflow="fold",
            min_width={"arm": ARM, "verdict": VERDICT}.get(column),
        )
    colors = {"better": "green", "worse": "red"}
    for row in rows:
        table.add_row(*(Text(cell, colors.get(cell, "")) for cell in row.values()))
    return table
