"""Write report/index.html: one file with the table, the figures and the library that draws them. The page
fetches nothing.

The library is Vega-Lite (the University of Washington's Interactive Data Lab), which vl-convert includes. One
description of a figure serves page and SVG file; the library has 0.9 MB, Plotly 4.8 MB. It is compressed.
"""

import base64
import gzip
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from comparison import caveats, commands, curves, figures
from comparison.groups import as_text, title
from comparison.report import Report
from comparison.table import Cells, cells, notes, number, sensitivity

HERE = Path(__file__).parent
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
    return TEMPLATES.get_template("page.html").render(
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        js=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        title=f"{report.metric} by {', '.join(keys) or 'seed'}: {len(report.runs)} runs",
        report=report,
        table_rows=cells(report),
        notes=notes(report),
        sensitivity=sensitivity(report),
        certificates=certificates(report),
        more_seeds=[f"# {row.title}\n{row.command}" for row in report.rows if row.command],
        reruns=[commands.rerun(run) for run in report.runs],
        machines=machines(report),
        shared=[f"{key}: {as_text(v)}" for key, v in caveats.shared_settings(report.runs).items()],
        sort_value=sort_value,
        payload=compress(json.dumps(payload(report), allow_nan=False, separators=(",", ":"))),
        library=compress(library()),
    )


def sort_value(text: str) -> str:
    """Return the number that a cell begins with, else the cell's text: the page sorts by it."""
    value = re.match(r"[+−-]?[\d,]*\.?\d+(e[+-]?\d+)?", text)
    return value[0].replace(",", "") if value else "" if text == "—" else text


def certificates(report: Report) -> list[Cells]:
    rows = []
    for row in report.rows:
        certificate = row.group.runs[0].certificate
        cell = {"": row.title}
        for mode in ("train", "eval"):
            for kind, words in (("future", "later tokens"), ("rows", "other rows")):
                value = certificate.get(mode, {}).get(kind, math.nan)
                cell[f"{words}, {mode}"] = number(value, ".2g") if isinstance(value, float) else str(value)
        causal = certificate.get("causal") and certificate.get("independent_rows")
        cell["verdict"] = "not tested" if not certificate else "causal" if causal else "LEAKS"
        rows.append(cell)
    return rows


def machines(report: Report) -> list[str]:
    """Return the versions and machines of the runs, each once."""
    lines = []
    for environment in (run.environment for run in report.runs):
        packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
        git = environment.get("git") or {}
        commit = git.get("commit", "no commit")[:12] + "+changes" * bool(git.get("diff"))
        where = "{processor}, {device} in {precision}, {threads} threads".format(**environment)
        lines.append(f"Python {environment['python']}, {packages}; normgpt {commit}; {where}")
    return list(dict.fromkeys(lines))


def payload(report: Report) -> dict[str, Any]:
    """Return what the page's script draws."""
    groups, titles = [row.group for row in report.rows], [row.title for row in report.rows]
    bands = {metric: [curves.band(group, metric) for group in groups] for metric in curves.CURVES}
    rate_titles = [title(each.family.keys) for each in report.sensitivities]
    every = list(dict.fromkeys([*titles, *rate_titles]))
    return {
        "groups": [{"title": t, "color": figures.color_of(i)} for i, t in enumerate(every)],
        "axes": figures.AXES,
        "style": figures.STYLE | {"background": "transparent"},
        "specs": {
            "curves": figures.curves(every, ""),
            "profile": figures.profile(every),
            "rates": figures.rates(every, report.metric),
        },
        "curves": {metric: [*map(as_lists, lines)] for metric, lines in bands.items() if any(lines)},
        "maps": [
            {
                "name": statistic.name,
                "spec": figures.heat(statistic),
                "steps": [int(step) for step in statistic.steps],
                "blocks": statistic.blocks,
                "values": [[[*map(figures.rounded, line)] for line in values] for values in statistic.values],
            }
            for statistic in curves.maps(groups)
        ],
        "rates": figures.rate_rows(rate_titles, report.sensitivities),
    }


def as_lists(band: curves.Band | None) -> dict[str, list[float | None]] | None:
    return {name: [*map(figures.rounded, array)] for name, array in vars(band).items()} if band else None


def compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def library() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
