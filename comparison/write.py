"""Write the files of a comparison, for people and for other programs:

table.md, table.csv     the table
index.html              the page
runs.csv                a line per run: settings that differ, state at the end, time and memory
metrics.csv             a line per number: run, step, tokens, seconds, metric, value
figures/*.svg           each figure, for a paper
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from comparison import groups
from comparison.drawing import convert, figures, specs
from comparison.drawing.page import page
from comparison.groups import ComparisonError
from comparison.load import Run
from comparison.published import as_csv
from comparison.report import Report
from comparison.table import Cells, cells
from data.files import write_atomically

REPORT_FILES = ("index.html", "table.md", "table.csv", "runs.csv", "metrics.csv", "figures")
MARK = "<!-- written by compare.py, which replaces all files of this folder -->"


def check_folder(out: Path) -> None:
    """Raise ComparisonError if the folder has files that are not of a report."""
    files = out.iterdir() if out.is_dir() else []
    names = sorted(file.name for file in files if not file.name.startswith("."))  # not .DS_Store
    if others := [name for name in names if name not in REPORT_FILES]:
        raise ComparisonError(f"--out: {out} has other files, such as {others[0]}; name a new folder")
    if names and not is_ours(out / "table.md"):  # it is the first file of a report
        problem = "has files that are not of a report, or of one by an earlier version"
        raise ComparisonError(f"--out: {out} {problem}; remove the folder, or name a new one")


def is_ours(file: Path) -> bool:
    with suppress(OSError):
        return file.is_file() and file.read_bytes().startswith(MARK.encode())
    return False


def write_table(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table whose rows have the same columns."""
    write_atomically(file, as_csv(file, [*rows[0]], rows))


def write_report(report: Report, out: Path) -> Iterator[str]:
    """Write all files into ``out``, and yield a line for the user after each step. Raises
    ComparisonError if the folder has other files, and OSError."""
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    rows = cells(report)
    (out / "table.md").write_text(f"{MARK}\n\n{markdown(rows)}", encoding="utf-8")
    write_table(out / "table.csv", rows)
    used = {id(run) for row in report.rows for run in row.group.runs if run.seed in row.used}
    runs = [run_row(run, report) | {"used": id(run) in used} for run in report.runs]
    write_table(out / "runs.csv", runs)
    write_metrics(report, out / "metrics.csv")
    yield f"{out}/: table.md, table.csv, runs.csv, metrics.csv"
    (out / "index.html").write_text(page(report), encoding="utf-8")
    yield f"{out / 'index.html'}: open it in a browser; {(out / 'index.html').stat().st_size / 1e6:.1f} MB"
    (out / "figures").mkdir(exist_ok=True)
    for old in (out / "figures").glob("*.svg"):
        old.unlink()
    named: dict[str, specs.Spec] = {}
    many = len(report.rows) > specs.MANY
    every = [*figures.all_figures(report)]
    drawn = [figure for figure in every if not (many and figure.kind == "maps")]
    for figure in drawn:
        named |= figures.files(figure, every_axis=not many)
    for name, spec in named.items():
        file = re.sub(r"[^\w.-]", "-", name.replace("*", "LL"))[:100]
        (out / "figures" / f"{file}.svg").write_text(convert.svg(spec), encoding="utf-8")
    note = f" (without maps: {len(report.rows)} groups are too many; choose some with --where)"
    yield f"{out / 'figures'}/: {len(named)} figures as SVG{note if len(drawn) < len(every) else ''}"


def run_row(run: Run, report: Report) -> dict[str, Any]:
    keys = {key: run.config.get(key, "") for key in groups.differing(report.runs)}
    return {
        "run": run.name,
        "group": run.group,
        "seed": run.seed,
        **keys,
        "state": run.status["state"],
        "reason": run.status.get("reason") or "",
        report.metric: "" if run.diverged else run.last(report.metric),
        "steps": int(run.axes["step"][-1]) if len(run.axes["step"]) else 0,
        "seconds": float(run.axes["seconds"][-1]) if len(run.axes["seconds"]) else "",
        "peak_memory": run.status.get("peak_memory") or "",
        "parameters": run.environment.get("parameters", ""),
        "leaks": run.leaks,
        "causality": run.causality,
    }


def write_metrics(report: Report, file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("run", "step", "tokens", "seconds", "metric", "value"))
        for run in report.runs:
            axes = zip(*(run.axes[axis].tolist() for axis in ("step", "tokens", "seconds")), strict=True)
            heads = [(run.name, f"{s:.0f}", f"{t:.0f}", f"{seconds:.3f}") for s, t, seconds in axes]
            for metric, (rows, values) in run.metrics.items():
                points = zip(rows.tolist(), values.tolist(), strict=True)
                writer.writerows((*heads[row], metric, f"{value:.7g}") for row, value in points)


def markdown(rows: Sequence[Cells]) -> str:
    """Return a table in Markdown."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    escaped_lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped_lines)
