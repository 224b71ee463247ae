"""Show the rows of a study: in a terminal of any width, in Markdown, as JSON, and as an exit status.

The conclusion comes first, then the table, what a verdict means, the warnings, and at most one command.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from data.errors import ConfigError
from study.runs import differing, read_runs
from study.statistics import EXTENDED, FIRST, Row, rows

if TYPE_CHECKING:  # importing study.plan takes a second: it composes configs
    from study.plan import Study

THAN = {"better": " than", "worse": " than", "equivalent": " to"}
COLORS = {"better": "green", "worse": "red"}
EXIT = {"better": 0, "worse": 10, "equivalent": 11, "open": 12}
UNFIT = 13
# columns that a narrow terminal goes without, the first one first
SPARE = ("settings", "bits/byte", "memory", "tokens/s", "steps to baseline", "half the trials")
ARM, VERDICT = 18, 14  # characters to which an arm and a verdict are wrapped at most

Cells = dict[str, str]  # by column


@dataclass(frozen=True)
class Table:
    """A study's rows, and what is said around them.

    Attributes:
        warnings: a line each.
    """

    study: "Study"
    rows: list[Row]
    extended: bool
    warnings: list[str]


def load(
    study: "Study",
    chosen: Mapping[str, Any] | None,
    extended: Mapping[str, Any] | None,
) -> Table:
    """Read the compared runs of a study and judge its arms."""
    parts = [*chosen["arms"].values()] if chosen else []
    names = [name for arm in parts for name in arm["runs"]]
    names += [name for more in extended["runs"].values() for name in more] if extended else []
    runs, skipped = read_runs(Path(study.runs_dir), names, study.metric)
    judged = rows(study, chosen, extended, runs)
    conditions = differing(runs.values())
    warnings = [f"the compared runs differ in {', '.join(conditions)}"] if conditions else []
    return Table(study, ordered(study, judged), bool(extended), warnings + skipped)


def ordered(study: "Study", judged: Sequence[Row]) -> list[Row]:
    """Return each baseline followed by the arms that are compared with it, the lowest loss first."""
    titles = [arm.title for arm in study.arms]

    def place(row: Row) -> tuple[int, bool, float]:
        loss = math.inf if row.mean is None else row.mean
        return titles.index(row.baseline or row.title), row.baseline is not None, loss

    return sorted(judged, key=place)


# ---------------------------------------------------------------------------------------------------
# In words


def short(title: str) -> str:
    """``norm=l1 placement=pre norm.eps=1`` -> ``l1 pre norm.eps=1``."""
    return " ".join(word.removeprefix("norm=").removeprefix("placement=") for word in title.split())


def conclusion(table: Table) -> str:
    """Return the sentence that comes first."""
    compared = [row for row in table.rows if row.baseline]
    bases = sorted({row.baseline for row in compared if row.baseline})
    base = short(bases[0]) if len(bases) == 1 else f"their baselines (by {', '.join(table.study.by)})"
    if not table.study.verdicts:
        return f"{len(compared)} arms beside {base}; the study was declared to give no verdicts."
    if not compared:
        return "One arm, which is compared with nothing."
    counts = Counter(row.outcome for row in compared)
    phrases: list[str] = []
    for outcome in ("better", "worse", "equivalent", "open", None):
        if count := counts[outcome]:
            verb = "" if phrases else "is " if count == 1 else "are "
            against = f"{THAN[outcome]} {base}" if outcome in THAN and base not in "".join(phrases) else ""
            phrases.append(f"{count} {verb}{outcome or 'without a verdict'}{against}")
    said = ", ".join(phrases)
    beside = "" if base in said else f" compared with {base}"
    return f"Of {len(compared)} arm{'s' * (len(compared) != 1)}{beside}, {said}."


def notes(table: Table) -> list[str]:
    """Return the sentences below the table: how the arms were extended, and what a verdict leaves out."""
    study = table.study
    lines = []
    if table.extended:
        lines.append(
            "The seeds were doubled, and every arm was judged anew at a stricter level: one that had a "
            "verdict may be open again."
        )
    if study.tune:
        lines.append(
            "A verdict is about the chosen settings. Half the trials: by how much the lowest loss of the "
            "trials would be expected to rise with half as many, so what another draw may change."
        )
    else:
        lines.append(
            "A verdict is about the given settings, the same for all arms, none tuned: at each arm's own "
            "best settings the order may differ."
        )
    lines.append("The noise of the evaluation text is not in the interval.")
    return lines


def more_seeds(table: Table) -> tuple[str, str] | None:
    """Return a sentence and a command for the open arm that needs the fewest seeds; None if there is none, or
    if no number of seeds that anyone would run decides."""
    needing = [(row.seeds_needed, row.title) for row in table.rows if row.seeds_needed]
    if not needing:
        return None
    needed, title = min(needing)
    study = table.study
    words = [word for word in study.declared_by if word.partition("=")[0] not in ("name", "seeds", "extend")]
    if needed <= 2 * len(study.seeds) and not table.extended:
        words, how = [*study.declared_by, "extend=true"], "double the seeds, once"
    else:
        words += [f"name={study.name}_{needed}_seeds", f"seeds={needed}"]
        how = "declare a new study, with its own seeds"
    sentence = f"{short(title)} needs some {needed} seeds, if its difference is as large as seen: {how}."
    return sentence, shlex.join(["python", "ablate.py", *words])


def verdict(row: Row) -> str:
    """Return the last cell of a row: seeds that diverged or collapsed first, then the outcome or why there is
    none, then leaks."""
    n = len(row.seeds)
    parts = [] if row.baseline else ["baseline"]
    parts += [f"{row.diverged} of {n} diverged"] if row.diverged else []
    parts += [f"{row.collapsed} of {n} collapsed"] if row.collapsed else []
    reason = f"{len(row.losses)} of {n} finished" if row.reason == "unfinished" else row.reason
    parts += [row.outcome] if row.outcome else []
    if reason and reason not in (
        "a seed diverged",
        "it leaks",
        "causality not tested",
    ):  # said more precisely
        parts.append(reason)
    leaking = [mode for mode in row.leaks if mode != "not tested"]
    parts += [f"LEAKS in {' and '.join(leaking)}"] if leaking else []
    parts += ["causality not tested"] * ("not tested" in row.leaks)
    return "; ".join(parts)


# ---------------------------------------------------------------------------------------------------
# As a table


def number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def cells(table: Table, row: Row) -> Cells:
    interval = "" if row.low is None else f" [{row.low:+.4f}, {row.high:+.4f}]"
    settings = [f"{key}={value}{' (edge)' * (key in row.edges)}" for key, value in row.settings.items()]
    return {
        "arm": short(row.title),
        "loss": number(row.mean, ".4f"),
        "difference [low, high]": number(row.difference, "+.4f") + interval,
        "verdict": verdict(row),
        "half the trials": number(row.half_the_trials, "+.4f"),
        "steps to baseline": number(row.steps_to_baseline, ",.0f"),
        "tokens/s": number(row.tokens_per_s, ",.0f"),
        "memory": number(row.memory and row.memory / 2**30, ".2f") + " GiB" * bool(row.memory),
        "bits/byte": number(row.bpb, ".4f"),
        "settings": " ".join(settings),
    }


def filled(table: Table) -> list[Cells]:
    """Return the cells of all rows, without columns in which there is nothing."""
    grid = [cells(table, row) for row in table.rows]
    empty = {column for column in grid[0] if column in SPARE and not any(row[column] for row in grid)}
    return [{column: text for column, text in row.items() if column not in empty} for row in grid]


def caption(table: Table) -> str:
    """Return the line above the table: what is in it."""
    study, share = table.study, EXTENDED if table.extended else FIRST
    half = " on the half of the text that tuning did not read" * (study.metric == "val/report_loss")
    seeds = len(table.rows[0].seeds)
    level = f"Student's t, two-sided at 1 − {share}/{study.comparisons}"
    return f"Mean validation loss{half} over {seeds} seeds; difference paired by seed; {level}."


def print_rows(table: Table, console: Console) -> None:
    """Print the table; where there is no room, without costs, as a line then says."""
    grid, left_out = filled(table), []
    for column in SPARE:
        if width(grid) <= console.width:
            break
        if column in grid[0]:
            left_out.append(column)
            grid = [{key: text for key, text in row.items() if key != column} for row in grid]
    has_room = width(grid) <= console.width  # else differences are wrapped, too
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in grid[0]:
        is_text = column in ("arm", "verdict", "settings")
        drawn.add_column(
            Text(column),  # not markup, which [low, high] would be
            justify="left" if is_text else "right",
            no_wrap=not is_text and (has_room or column == "loss"),
            overflow="fold",
            min_width={"arm": ARM, "verdict": VERDICT}.get(column) if has_room else None,
        )
    for row, texts in zip(table.rows, grid, strict=True):
        drawn.add_row(*(Text(text, COLORS.get(row.outcome or "", "")) for text in texts.values()))
    console.print(Text(conclusion(table), "bold"))
    console.print(Text(caption(table), "dim"))
    console.print(drawn)
    for line in notes(table):
        console.print(Text(line, "dim"))
    if left_out:
        console.print(Text(f"Left out for lack of room: {', '.join(left_out)}.", "dim"))
    for warning in table.warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    if advice := more_seeds(table):
        sentence, command = advice
        console.print(Text(sentence))
        print(f"  {command}", file=console.file)  # not wrapped, so that it can be copied


def width(grid: Sequence[Cells]) -> int:
    """Return the width of a table in which arms and verdicts are wrapped."""
    widths = {column: max(len(column), *(len(row[column]) for row in grid)) for column in grid[0]}
    return sum((widths | {"arm": ARM, "verdict": VERDICT}).values()) + 3 * len(widths)


def markdown(table: Table) -> str:
    """Return table.md."""
    grid = filled(table)
    lines = [conclusion(table), "", caption(table), "", row_of(grid[0]), row_of(["---"] * len(grid[0]))]
    lines += [row_of(row.values()) for row in grid]
    lines += ["", *(f"- {line}" for line in notes(table))]
    lines += [f"- warning: {warning}" for warning in table.warnings]
    if advice := more_seeds(table):
        lines += ["", f"{advice[0]}", "", f"    {advice[1]}"]
    return "\n".join(lines) + "\n"


def row_of(texts: Iterable[str]) -> str:
    escaped = (text.replace("|", r"\|") for text in texts)
    return f"| {' | '.join(escaped)} |"


# ---------------------------------------------------------------------------------------------------
# For programs


def as_json(table: Table) -> dict[str, Any]:
    """Return the study and a row an arm as plain data. ``version`` grows if a key changes its meaning."""
    return {
        "schema": "normgpt study",
        "version": 1,
        "conclusion": conclusion(table),
        "extended": table.extended,
        "study": table.study.model_dump(mode="json", by_alias=True),
        "arms": [asdict(row) for row in table.rows],
        "warnings": table.warnings,
    }


def candidate(table: Table, arm: str) -> tuple[int, str]:
    """Return the exit status for an arm, and a line that says why.

    Args:
        arm: its title, as words or as in the table, or values of keys, ``norm=rmsnorm,placement=pre``. Of
            several arms that have them, it is the one with the fewest keys.
    """
    compared = [row for row in table.rows if row.baseline]
    same = {other: each.title for each in table.study.arms for other in each.same_as}  # one arm with another
    arm = next((title for other, title in same.items() if arm in (other, short(other))), arm)
    found = [row for row in compared if arm in (row.title, short(row.title))]
    wanted = {(key, value) for key, _, value in (word.partition("=") for word in arm.split(","))}
    found = found or [row for row in compared if wanted <= {*row.keys.items()}]
    fewest = [row for row in found if len(row.keys) == min(len(other.keys) for other in found)]
    if len(fewest) != 1:
        titles = ", ".join(short(row.title) for row in compared)
        fits = "several arms" if fewest else "no arm beside a baseline"
        raise ConfigError(f"candidate: {arm} fits {fits}; name one of: {titles}")
    [row] = fewest
    status = EXIT.get(row.outcome or "", UNFIT)
    difference = "" if row.difference is None else f" ({row.difference:+.4f})"
    return status, f"{short(row.title)}: {verdict(row)}{difference}"
