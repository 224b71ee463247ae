"""What a comparison leaves behind, for people and for other programs:

index.html              the page
table.md, table.csv     the table
runs.csv                a line a run: settings that differ, how it ended, what it cost
metrics.csv             a line a number: run, step, tokens, seconds, metric, value
figures/*.svg           each figure, for a paper
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comparison import curves, figures, groups
from comparison.groups import ComparisonError, title
from comparison.load import Run
from comparison.page import page, shown_groups
from comparison.report import Report
from comparison.table import cells, markdown, write_csv

OURS = ("index.html", "table.md", "table.csv", "runs.csv", "metrics.csv", "figures")
NUMBERS = 1_000_000  # in metrics.csv: what a spreadsheet holds. Of more, evenly spread steps are written


def write(report: Report, out: Path) -> Iterator[str]:
    """Write all of it into ``out``, and say what as it is done.

    Raises:
        ComparisonError: there are files that are no report's.
        OSError: it cannot be written.
    """
    others = [file.name for file in out.iterdir() if file.name not in OURS] if out.is_dir() else []
    if others:
        raise ComparisonError(
            f"--out: {out} has other files, as {others[0]}; name a folder for the report alone"
        )
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "index.html").write_text(page(report), encoding="utf-8")
    yield f"{out / 'index.html'}: open it in a browser; {(out / 'index.html').stat().st_size / 1e6:.1f} MB"
    rows = cells(report)
    (out / "table.md").write_text(markdown(rows), encoding="utf-8")
    write_csv(out / "table.csv", list(rows[0]), [list(row.values()) for row in rows])
    runs = [line(run, report) for run in report.runs]
    write_csv(out / "runs.csv", list(runs[0]), [list(run.values()) for run in runs])
    part = write_metrics(report, out / "metrics.csv")
    yield f"{out}/: table.md, table.csv, runs.csv, metrics.csv{part}"
    for old in (out / "figures").glob("*.svg"):
        old.unlink()
    count = 0
    for name, spec in drawn(report):
        file = re.sub(r"[^\w.-]", "-", name.replace("*", "LL"))[:100]
        (out / "figures" / f"{file}.svg").write_text(figures.svg(spec), encoding="utf-8")
        count += 1
    many = f"; maps of {len(report.rows)} groups do not fit a figure, choose some with --where"
    yield f"{out / 'figures'}/: {count} figures as SVG" + many * (len(report.rows) > figures.MANY)


def line(run: Run, report: Report) -> dict[str, Any]:
    """Of runs.csv."""
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
    }


def write_metrics(report: Report, file: Path) -> str:
    """metrics.csv. Returns what is to be said of its size."""
    total = sum(len(rows) for run in report.runs for rows, _ in run.metrics.values())
    stride = math.ceil(total / NUMBERS)
    with file.open("w", encoding="utf-8") as stream:
        stream.write("run,step,tokens,seconds,metric,value\n")
        for run in report.runs:
            axes = zip(*(run.axes[axis] for axis in ("step", "tokens", "seconds")), strict=True)
            heads = np.array(
                [f"{cell(run.name)},{s:.0f},{t:.0f},{seconds:.3f}," for s, t, seconds in axes], object
            )
            for metric, (rows, values) in run.metrics.items():
                name = cell(metric)
                stream.writelines(
                    f"{head}{name},{value:.7g}\n"
                    for head, value in zip(heads[rows[::stride]], values[::stride].tolist(), strict=True)
                )
    return f" (every {stride}th step of each metric: there are {total:,} numbers)" if stride > 1 else ""


def cell(text: str) -> str:
    """Of a CSV file."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


def drawn(report: Report) -> Iterator[tuple[str, figures.Spec]]:
    """Each figure's name and description."""
    shown, titles = shown_groups(report)
    for metric in curves.CURVES:
        bands = [curves.band(group, metric) for group in shown]
        if any(bands):
            rows = figures.curve_rows(titles, bands)
            for axis in figures.AXES if "loss" in metric and len(shown) <= figures.MANY else ("step",):
                name = f"{metric} against {axis}".replace(" ", "-")
                yield name, figures.filled(figures.curves(titles, metric, axis), rows)
    if report.sensitivities:
        names = [title(one.family.keys) for one in report.sensitivities]
        rows = figures.rate_rows(names, report.sensitivities)
        yield "learning-rates", figures.filled(figures.rates(names, report.metric), rows)
    for one in curves.maps(shown) if len(shown) <= figures.MANY else ():
        yield f"map-{one.name}", figures.filled(figures.heat(one), figures.heat_rows(titles, one))
