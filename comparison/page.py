"""report/index.html: one file that holds the table, the figures and the library that draws them, and fetches
nothing.

The library is Vega-Lite (the University of Washington's Interactive Data Lab), which vl-convert carries. Of
the well-kept ones it is the one whose descriptions make the page and the files for a paper alike, in SVG, at
0.9 MB; Plotly's is 4.8 MB. Numbers and library are packed, to about a third, and the browser unpacks them.
"""

import base64
import gzip
import html
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from comparison import caveats, commands, curves, figures
from comparison.groups import shown, title
from comparison.report import Report
from comparison.table import Cells, cells, notes, number, sensitivity

HERE = Path(__file__).parent


def page(report: Report) -> str:
    """The whole page."""
    parts = {
        "title": html.escape(heading(report)),
        "css": (HERE / "page.css").read_text(encoding="utf-8"),
        "js": (HERE / "page.js").read_text(encoding="utf-8"),
        "said": "".join(f"<p>{html.escape(said)}</p>" for said in report.said),
        "table": table(cells(report), {"verdict", *report.keys}, "sortable"),
        "notes": " ".join(map(html.escape, notes(report))),
        "warnings": "".join(
            f'<p class="warning">⚠ {html.escape(warning)}</p>' for warning in report.warnings
        ),
        "sensitivity": table(sensitivity(report), {""}, "sortable") if report.sensitivities else "",
        "certificate": table(certificates(report), {"", "verdict"}),
        "how": how(report),
        "payload": packed(json.dumps(payload(report), allow_nan=False, separators=(",", ":"))),
        "library": packed(library()),
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], template)


def heading(report: Report) -> str:
    names = [key.removeprefix("optim.").removeprefix("model.").removeprefix("train.") for key in report.keys]
    return f"{report.metric} by {', '.join(names) or 'seed'}: {len(report.runs)} runs"


def table(rows: Sequence[Cells], words: set[str], kind: str = "") -> str:
    """As HTML. Columns of ``words`` are aligned left; a cell sorts by the number that it begins with."""
    columns = list(rows[0])
    heads = []
    for column in columns:
        name = html.escape(column) or "group"
        inner = f"<button type=button>{name}</button>" if kind else name
        heads.append(f'<th scope=col class="{"words" if column in words else "number"}">{inner}</th>')
    lines = []
    for row in rows:
        line = []
        for column in columns:
            text = row[column]
            style = "words" if column in words else "number"
            style += f" {text}" if column == "verdict" and text in ("better", "worse") else ""
            found = re.match(r"[+−-]?[\d,]*\.?\d+(e[+-]?\d+)?", text)
            value = found[0].replace(",", "") if found else "" if text == "—" else text
            line.append(f'<td class="{style}" data-sort="{html.escape(value)}">{html.escape(text)}</td>')
        lines.append(f"<tr>{''.join(line)}</tr>")
    head, body = f"<thead><tr>{''.join(heads)}</tr></thead>", f"<tbody>{''.join(lines)}</tbody>"
    return f'<table class="{kind}">{head}{body}</table>'


def certificates(report: Report) -> list[Cells]:
    rows = []
    for row in report.rows:
        given = row.group.runs[0].certificate
        cell = {"": row.title}
        for mode in ("train", "eval"):
            for what, words in (("future", "later tokens"), ("rows", "other rows")):
                value = given.get(mode, {}).get(what, math.nan)
                cell[f"{words}, {mode}"] = number(value, ".2g") if isinstance(value, float) else str(value)
        causal = given.get("causal") and given.get("independent_rows")
        cell["verdict"] = "not tested" if not given else "keeps to the past" if causal else "LEAKS"
        rows.append(cell)
    return rows


def how(report: Report) -> str:
    """Commands, versions, and the settings that all runs share."""
    parts = []
    undecided = [row for row in report.rows if row.command]
    if undecided:
        lines = [f"# {row.title}\n{row.command}" for row in undecided]
        parts.append(f"<h3>More seeds where they would tell</h3>{preformatted(lines)}")
    lines = [commands.again(run) for run in report.runs]
    parts.append(f"<details><summary>The runs, one by one</summary>{preformatted(lines)}</details>")
    versions: dict[str, None] = {}
    for run in report.runs:
        e = run.environment
        packages = ", ".join(f"{name} {version}" for name, version in e["packages"].items())
        commit = (e.get("git") or {}).get("commit", "no commit")[:12] + "+changes" * bool(
            (e.get("git") or {}).get("diff")
        )
        machine = f"{e['processor']}, {e['device']} in {e['precision']}, {e['threads']} threads"
        versions[f"Python {e['python']}, {packages}; normgpt {commit}; {machine}"] = None
    parts.append(f"<h3>Versions and machines</h3>{preformatted(list(versions))}")
    common = [f"{key}: {shown(value)}" for key, value in caveats.shared(report.runs).items()]
    parts.append(f"<details><summary>Settings that all runs share</summary>{preformatted(common)}</details>")
    if report.passed_over:
        parts.append(f"<h3>Passed over</h3>{preformatted(report.passed_over)}")
    return "".join(parts)


def preformatted(lines: Sequence[str]) -> str:
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def payload(report: Report) -> dict[str, Any]:
    """What the page's script draws."""
    groups, titles = shown_groups(report)
    found = {metric: [curves.band(group, metric) for group in groups] for metric in curves.CURVES}
    maps = curves.maps(groups)
    rate_titles = [title(one.family.keys) for one in report.sensitivities]
    everything = list(dict.fromkeys([*titles, *rate_titles]))
    return {
        "groups": [{"title": t, "color": figures.color_of(i)} for i, t in enumerate(everything)],
        "axes": figures.AXES,
        "style": figures.STYLE | {"background": "transparent"},
        "specs": {
            "curves": figures.curves(everything, ""),
            "profile": figures.profile(everything, ""),
            "rates": figures.rates(everything, report.metric),
        },
        "curves": {m: [lists(band) for band in bands] for m, bands in found.items() if any(bands)},
        "maps": [
            {
                "name": one.name,
                "spec": figures.heat(one),
                "steps": [int(step) for step in one.steps],
                "blocks": one.blocks,
                "values": [[list(map(figures.plain, line)) for line in values] for values in one.values],
            }
            for one in maps
        ],
        "rates": figures.rate_rows(rate_titles, report.sensitivities),
    }


def shown_groups(report: Report) -> tuple[list[Any], list[str]]:
    """The groups of the table, each at its best rate, and what they are called in figures."""
    return [row.group for row in report.rows], [row.title for row in report.rows]


def lists(band: curves.Band | None) -> dict[str, list[float | None]] | None:
    return {name: list(map(figures.plain, array)) for name, array in vars(band).items()} if band else None


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def library() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
