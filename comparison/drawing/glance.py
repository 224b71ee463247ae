"""The top of a report's page: a sentence on who is better, the differences from the baseline as dots, and, of
two crossed factors, the map of the losses."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from comparison import commands
from comparison.curves import rounded
from comparison.decisions import Outcome, Row, by_difference, in_one_word
from comparison.groups import as_text, title
from comparison.report import Report
from comparison.verdicts import paired

MANY = 6  # arms that are named one by one
WORDS: dict[Outcome, str] = {
    "better": "better",
    "worse": "worse",
    "lower": "lower",
    "higher": "higher",
    "equivalent": "equivalent",
    "open": "not decided",
    "diverged": "diverged",
    "unfit": "not comparable",
}
# most colour-blind people can tell these apart
BLUE, ORANGE, GREY, PALE = "#2f6fb5", "#d9742b", "#7a7f87", "#b9bdc4"
COLORS = {"better": BLUE, "lower": BLUE, "worse": ORANGE, "higher": ORANGE, "equivalent": GREY}
COLORS |= {"open": PALE, "unfit": PALE, "diverged": PALE}


def compared(report: Report) -> list[Row]:
    """Return the rows that are compared with a baseline, the lowest difference first; those that have none
    are last."""
    return sorted((row for row in report.rows if row.baseline), key=by_difference)


def sentence(report: Report, warnings_at: str = "below the table") -> str:
    """Return who is better than the baseline, by how much, how sure that is, and what to doubt."""
    rows = compared(report)
    if not rows:
        return "There is nothing to compare: no arm has a baseline."
    counts = Counter(row.outcome for row in rows)
    leading = [row for row in rows if row.outcome in ("better", "lower")]
    against = baseline_of(rows, len(leading))
    if leading:
        leaders = and_([with_difference(row, report.metric) for row in leading[:MANY]])
        more = f" and {len(leading) - MANY} more" if len(leading) > MANY else ""
        verb = "is" if len(leading) == 1 else "are"
        first = f"{leaders}{more} {verb} {leading[0].outcome} than {against}."
    elif len(rows) == 1 and rows[0].outcome in ("worse", "higher", "equivalent"):
        words = {"equivalent": "equivalent to"}.get(rows[0].outcome, f"{rows[0].outcome} than")
        first = f"{with_difference(rows[0], report.metric)} is {words} {against}."
    else:
        shown = "shown to be " if counts["open"] or counts["unfit"] else ""
        first = f"No arm is {shown}{in_one_word('lower', report.metric)} than {against}."
    verbs = (("is", "are"), ("has", "have"))
    each = [
        f"{count} {verbs[outcome == 'diverged'][count > 1]} {word}"
        for outcome, word in WORDS.items()
        if (count := counts[outcome])
    ]
    judged = len(rows) - counts["open"] - counts["diverged"] - counts["unfit"]
    sure = "The chance that any of these verdicts is false is about 5 %." if judged else ""
    total = f"Of {len(rows)} arms, {and_(each)}." if len(rows) > 1 else ""
    return " ".join(part for part in (first, total, sure, doubt(report, warnings_at)) if part)


def baseline_of(rows: Sequence[Row], leaders: int) -> str:
    """Return the title of the rows' baseline; ``its baseline`` or ``their baselines`` if there are more."""
    baselines = {title(row.baseline.keys) for row in rows if row.baseline}
    several = "their baselines" if leaders > 1 else "its baseline"
    return baselines.pop() if len(baselines) == 1 else several


def difference_in_words(report: Report) -> list[str]:
    """Return what the picture of the differences has on its axis, line by line."""
    unit = ["(nats per token; lower is better)"] if "loss" in report.metric else []
    return [f"{report.metric}: difference from {baseline_of(compared(report), 1)}", *unit]


def next_step(report: Report) -> dict[str, str] | None:
    """Return what the reader can do next, in words, and the command: more seeds for the arm that needs the
    fewest. None if no arm is open, or if all need more seeds than a command trains."""
    row = next((row for row in report.open_rows if row.missing <= commands.MAX_SEEDS), None)
    if row is None:
        return None
    seeds = "1 more seed" if row.missing == 1 else f"{row.missing} more seeds"
    return {"words": f"{seeds} may settle whether {row.title} differs", "command": row.command}


def with_difference(row: Row, metric: str) -> str:
    assert row.difference
    unit = " nats" if "loss" in metric else ""
    mean, half = row.difference.mean, row.difference.half
    return f"{row.title} ({mean:+.4f} ± {half:.4f}{unit}, {row.difference.n} seeds)"


def doubt(report: Report, warnings_at: str) -> str:
    """Return what to doubt in one sentence; "" if nothing is known."""
    leaking = [row.title for row in report.rows if row.group.leaks]
    doubts = [f"{and_(leaking)} LEAK{'S' * (len(leaking) == 1)}"] if leaking else []
    doubts += [] if report.is_fair else ["the arms may not be at their own best settings"]
    if count := len(report.warnings):
        counted = "is a warning" if count == 1 else f"are {count} warnings"
        doubts.append(f"there {counted} {warnings_at}")
    return f"But {and_(doubts)}." if doubts else ""


def and_(words: Sequence[str]) -> str:
    """Return words as in a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def differences(report: Report) -> list[dict[str, Any]]:
    """Return the rows of the picture: group, outcome, mean, low, high, the difference of each seed; mark, a
    text to the right of all these, and where it is. [] if no difference has an interval."""
    rows: list[dict[str, Any]] = []
    if not any(row.difference and row.difference.n > 1 for row in report.rows):
        return rows
    for row in compared(report):
        place = row.difference if row.difference and row.difference.n else None
        pairs = paired(row.group.losses, row.baseline.best_group.losses) if place and row.baseline else []
        ends = [place.low, place.high] if place and place.n > 1 else pairs
        mark = ["LEAKS"] if row.group.leaks else []
        if row.group.diverged:
            mark.append(f"diverged {len(row.group.diverged)} of {len(row.group.seeds)}")
        if place or mark:
            rows.append(
                {
                    "group": row.title,
                    "outcome": row.outcome,
                    "mean": place and place.mean,
                    "low": min(ends, default=None),
                    "high": max(ends, default=None),
                    "seeds": pairs,
                    "mark": ", ".join(mark),
                    "mark_at": max([*ends, *pairs], default=0.0),
                }
            )
    return rows


def crossed(report: Report) -> list[dict[str, Any]]:
    """Return the cells of a design of two factors, such as norm and placement: group, the two values, mean
    (None if a run diverged), mark, trials and seeds. [] if there are other factors, or if most cells are
    empty."""
    keys = [*dict.fromkeys(key for row in report.rows for key in row.family.keys)]
    if len(keys) != 2 or any(row.family.keys.keys() != {*keys} for row in report.rows):
        return []
    values = [{as_text(row.family.keys[key]) for row in report.rows} for key in keys]
    if min(map(len, values)) < 2 or 2 * len(report.rows) < len(values[0]) * len(values[1]):
        return []
    trials = {
        choice.arm.title: len(choice.arm.rounds()[0].scores) for choice in report.choices if choice.arm.trials
    }
    cells = []
    for row in report.rows:
        group = row.group
        marks = ["diverged"] if group.diverged else []
        marks += ["leaks"] if group.leaks else []
        row_value, column_value = (as_text(row.family.keys[key]) for key in keys)
        cells.append(
            {
                "group": row.title,
                "row": row_value,
                "column": column_value,
                "mean": None if group.diverged else rounded(row.loss.mean),
                "mark": ", ".join(marks),
                "trials": trials.get(row.title, 0),
                "seeds": len(group.seeds),
            }
        )
    return cells


def effort(report: Report) -> str:
    """Return how many trials and seeds each cell of the map has, such as ``4 trials, 1 seed``."""
    numbers = {(cell["trials"], cell["seeds"]) for cell in crossed(report)}
    return " or ".join(
        (f"{trials} trial{'s' * (trials != 1)}, " if trials else "") + f"{seeds} seed{'s' * (seeds != 1)}"
        for trials, seeds in sorted(numbers)
    )
