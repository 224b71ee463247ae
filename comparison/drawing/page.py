"""Write report/index.html: one file with the table, the figures and the library that draws them. The page
fetches nothing.

The library is Vega-Lite (the University of Washington's Interactive Data Lab), which vl-convert includes. One
description of a figure serves the page and the SVG file. The library is compressed (0.9 MB; Plotly: 4.8 MB).
"""

import base64
import gzip
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from comparison import commands, curves
from comparison.drawing import figures, glance, specs
from comparison.drawing.printed import notes
from comparison.groups import as_text, is_compared
from comparison.report import Report
from comparison.run_files import answers, leak_of
from comparison.table import (
    COSTS,
    Cells,
    cells,
    column_of,
    folded,
    number,
    sensitivity,
    settings,
    settings_note,
)

HERE = Path(__file__).parent
BUNDLE = """import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;').encode())"""
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(report: Report) -> str:
    """Return the whole page."""
    keys = [re.sub("^(optim|model|train)[.]", "", key) for key in report.keys]
    what = f"of {len(report.rows)} arms" if len(keys) > 3 else f"by {', '.join(keys) or 'seed'}"
    return TEMPLATES.get_template("page.html").render(
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        js=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        title=f"{report.metric} {what}: {len(report.runs)} runs",
        report=report,
        lead=glance.sentence(report),
        effort=glance.effort(report),
        next=glance.next_step(report),
        overlapping=overlapping(report),
        all_columns=(rows := cells(report)),
        table_rows=folded(report, [{c: text for c, text in row.items() if c not in COSTS} for row in rows]),
        key_columns=(columns := [*map(column_of, report.keys)]),
        narrow=["arm", *columns, "difference", "verdict"],
        notes=notes(report),
        settings=settings(report),
        settings_note=settings_note(report),
        sensitivity=sensitivity(report),
        certificates=certificates(report),
        more_seeds=[f"# {row.title}\n{row.command}" for row in report.open_rows],
        reruns=[command for run in report.runs if (command := commands.rerun(run))],
        machines=machines(report),
        shared=shared_settings(report),
        payload=compress(json.dumps(payload(report), allow_nan=False, separators=(",", ":"))),
        library=compress(library()),
    )


def overlapping(report: Report) -> str:
    """Return the groups whose curves of val/loss lie on one another, such as ``a and b; c and d``."""
    rows = curves.curves({row.title: row.group for row in report.rows}, "val/loss")
    return "; ".join(glance.and_(titles) for titles in curves.coinciding(rows))


def certificates(report: Report) -> list[Cells]:
    """Return the table of leaks: a row per group, with the largest leak of its runs, at start or end."""
    rows = []
    for row in report.rows:
        runs = row.group.runs
        all_answers = [answer for run in runs for answer in answers(run.certificate)]
        cell = {"": row.title}
        for mode in ("train", "eval"):
            for kind, words in (("future", "later tokens"), ("rows", "other rows")):
                leaks = [leak_of(answer.get(mode, {}), kind) for answer in all_answers]
                measured = [leak for leak in leaks if not math.isnan(leak)]
                cell[f"{words}, {mode}"] = number(max(measured, default=math.nan), ".2g")
        cell["verdict"] = ", ".join(dict.fromkeys(run.causality for run in runs))
        rows.append(cell)
    return rows


def shared_settings(report: Report) -> list[str]:
    first, *other_configs = (run.config for run in report.runs)
    keys = [key for key in first if key != "seed" and is_compared(key)]
    shared = (key for key in keys if all(config.get(key) == first[key] for config in other_configs))
    return [f"{key}: {as_text(first[key])}" for key in shared]


def machines(report: Report) -> list[str]:
    """Return a line for each different combination of versions and machine."""
    lines = []
    for environment in (run.environment for run in report.runs):
        packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
        git = environment.get("git") or {}
        commit = git.get("commit", "no commit")[:12] + ("+changes" if git.get("diff") else "")
        count = environment["threads"]
        machine = "{processor}, {device} in {precision}, {threads} thread".format(**environment)
        machine += "s" * (count != 1)
        lines.append(f"Python {environment['python']}, {packages}; normgpt {commit}; {machine}")
    return list(dict.fromkeys(lines))


def payload(report: Report) -> dict[str, Any]:
    """Return the data that the page's script draws: figures, each with its rows as a list per field."""
    labels, kinds = figures.labels(report), defaultdict(list)
    for figure in figures.all_figures(report):
        columns = {field: [row[field] for row in figure.rows] for field in figure.rows[0]}
        kinds[figure.kind].append({"name": figure.name, "spec": figure.spec, "columns": columns})
    return {
        "groups": [
            {"title": title, "label": label, "color": specs.color_of(i)}
            for i, (title, label) in enumerate(labels.items())
        ],
        "axes": specs.AXES,
        "style": specs.STYLE | {"background": "transparent"},
        "profile": specs.profile(labels),
        "figures": kinds,
    }


def compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def library() -> str:
    """Return Vega-Lite's JavaScript. Another process bundles it, as this takes two seconds in which no other
    thread of its process runs, so none could print that it takes long."""
    command = [sys.executable, "-P", "-c", BUNDLE]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()
