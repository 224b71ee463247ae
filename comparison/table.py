"""Make the table, whose cells are the same in the terminal, in Markdown, in CSV and on the page."""

import math
import re
from collections.abc import Sequence

import numpy as np

from comparison import caveats
from comparison.decisions import Row
from comparison.groups import RATE, as_text, short_names, title
from comparison.load import Run
from comparison.reach import in_words, reach
from comparison.report import Report
from comparison.settings import cost_of_half
from comparison.verdicts import LOOKS, Interval

BORROWED = "own − baseline's: the metric at its own settings minus that at the baseline's, paired by seed."
HALF = (
    "half the trials: by how much the best of a random half of an arm's settings is expected to be worse in "
    "the first trials. A difference between arms at different settings that is smaller than this may be luck "
    "in the draw of the settings; a larger one is no proof that it is not."
)
CHOSEN = "The verdicts are conditional on the chosen settings: tuning on other seeds may choose others."
LARGEST = 100  # nats; e to the power of more is no perplexity
BYTES = 256
# Columns that say what a run costs and how far it overfits; where there is no room, they are left out first.
TO_BASELINE = ("steps to baseline", "seconds to baseline")  # never in a terminal
SPARE = ("memory", "parameters", "tokens/s", "gap", "perplexity")
COSTS = (*TO_BASELINE, *SPARE)
Cells = dict[str, str]  # column -> text


def is_of_tokens(run: Run) -> bool:
    """Return whether the run predicts tokens, whose perplexity the field reports, and not characters."""
    return (run.vocab_size or 0) > BYTES and run.config.get("data.tokenizer") != "char"


def number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "—"


def with_interval(interval: Interval | None, form: str = ".4f") -> str:
    if interval is None or not math.isfinite(interval.mean):
        return "—"
    half = f" ± {format(interval.half, form.lstrip('+'))}" if math.isfinite(interval.half) else ""
    return format(interval.mean, form) + half


def verdict(row: Row) -> str:
    if row.seed_range is None:
        return row.verdict
    (low, high), most = row.seed_range, LOOKS[-1]
    if low > most:
        return f"{row.verdict}; even {most} may not settle it"
    seeds = f"{low} or more" if high > most else f"{low} to {high}" if high > low else f"{low}"
    return f"{row.verdict}; {seeds} may settle it"


def cells(report: Report) -> list[Cells]:
    """Return a dict for each row, without the columns that are empty in all rows."""
    with_rates = any(len(row.family.rates) > 1 for row in report.rows)
    rows = []
    for row in report.rows:
        group, runs = row.group, row.group.runs
        form = ".4f" if "loss" in report.metric else ",.0f" if abs(row.loss.mean) >= 1000 else ".4g"
        speeds = [float(np.median(v[1])) for run in runs if (v := run.metrics.get("train/tokens_per_s"))]
        memory = float(np.fmax.reduce([run.status.get("peak_memory") or math.nan for run in runs]))
        gaps = caveats.finite_gaps(runs)
        cell = {column_of(key): as_text(value) for key, value in row.family.keys.items()}
        if with_rates or RATE in group.keys:
            rate = "—" if row.family.rate is None else as_text(row.family.rate)
            cell["best rate" if with_rates else "rate"] = rate
        count, total = len(row.used), len({run.seed for run in runs})
        cell["seeds"] = str(total) if count == total else f"{count} of {total}"
        cell[report.metric] = "—" if group.diverged else with_interval(row.loss, form)
        if "loss" in report.metric and all(is_of_tokens(run) for run in runs):
            perplexity = math.exp(row.loss.mean) if row.loss.mean < LARGEST else math.inf
            cell["perplexity"] = number(perplexity, ",.2f")
        cell["difference"] = with_interval(row.difference, f"+{form}")
        cell["verdict"] = verdict(row)
        if reached := reach(row):
            cell["steps to baseline"] = in_words(reached.steps, reached.pairs, ",.0f")
            cell["seconds to baseline"] = in_words(reached.seconds, reached.pairs, ",.1f")
        elif row.outcome == "baseline" and len(report.rows) > 1 and all(len(r.axes["step"]) for r in runs):
            cell["steps to baseline"] = f"{np.mean([run.axes['step'][-1] for run in runs]):,.0f}"
            cell["seconds to baseline"] = f"{np.mean([run.axes['seconds'][-1] for run in runs]):,.1f}"
        cell["diverged"] = f"{len(group.diverged)} of {len(group.seeds)}" if group.diverged else ""
        cell["gap"] = f"{np.mean(gaps):+.3f}" if gaps else "—"
        cell["tokens/s"] = number(float(np.median(speeds or [math.nan])), ",.0f")
        cell["memory"] = f"{memory / 2**20:,.0f} MB" if math.isfinite(memory) else "—"
        cell["parameters"] = f"{max(run.environment.get('parameters', 0) for run in runs):,}"
        doubts = dict.fromkeys(run.causality for run in runs if run.causality != "causal")
        cell["leaks"] = "LEAKS" if "LEAKS" in doubts else ", ".join(doubts)
        rows.append(cell)
    columns = dict.fromkeys(column for row in rows for column in row)
    used = [column for column in columns if any(row.get(column) for row in rows)]
    return [{column: row.get(column, "—") for column in used} for row in rows]


def column_of(key: str) -> str:
    """Return the name of the column of a key."""
    return re.sub("^(model|train)[.]", "", key)


def folded(report: Report, rows: Sequence[Cells]) -> list[Cells]:
    """Return the rows with one column, ``arm``, in place of those of the keys, if these are more than two."""
    columns = {column_of(key) for row in report.rows for key in row.family.keys}
    if len(columns) <= 2:
        return [*rows]
    others = [{column: text for column, text in row.items() if column not in columns} for row in rows]
    return [{"arm": row.title} | cell for row, cell in zip(report.rows, others, strict=True)]


def has_borrowed(report: Report) -> bool:
    """Return whether arms were also trained at the settings of the baseline."""
    return any(choice.arm.borrowed for choice in report.choices)


def settings_note(report: Report) -> str:
    return " ".join([BORROWED] * has_borrowed(report) + [HALF, CHOSEN])


def settings(report: Report) -> list[Cells]:
    """Return the settings that were chosen for each arm, and what they gain over those of the baseline."""
    rows: list[Cells] = []
    for choice in report.choices:
        names = short_names(choice.arm.roles.keys).values()
        values = map(as_text, choice.arm.settings[0])
        rows.append({"": choice.arm.title} | dict(zip(names, values, strict=True)))
        rows[-1][report.metric] = with_interval(choice.own)
        rows[-1]["half the trials"] = number(cost_of_half(choice.first_losses), "+.3f")
        if has_borrowed(report):
            borrowed = with_interval(choice.borrowed) if choice.borrowed else choice.note
            rows[-1] |= {
                "at the baseline's settings": borrowed,
                "own − baseline's": with_interval(choice.difference, "+.4f"),
            }
    return rows


def sensitivity(report: Report) -> list[Cells]:
    return [
        {"": title(entry.family.keys)}
        | {as_text(rate): f"{loss:.3f}" for rate, loss in zip(entry.rates, entry.losses, strict=True)}
        | {"LR sensitivity": with_interval(entry.value, ".3f")}
        for entry in report.sensitivities
    ]
