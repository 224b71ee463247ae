"""Show findings: a picture of each, and the section of docs/findings.md that is generated from
results/findings."""

from math import isfinite
from typing import Any

import altair as alt

from findings.finding import Finding, Outcome, Picture, judge, load_findings, read_result
from training.environment import ROOT

RESULTS = ROOT / "results" / "findings"
PAGE = ROOT / "docs" / "findings.md"
BEGIN, END = "<!-- python -m findings --docs writes what follows -->\n", "<!-- until here -->\n"


def numbers(outcome: Outcome) -> str:
    """Return a quantity's mean, its interval, and the expected range."""
    mean, low, high = (f"{x:.3g}" for x in (outcome.mean, outcome.low, outcome.high))
    return f"{mean} [{low}, {high}], expected {outcome.expected}"


def section(name: str, finding: Finding) -> str:
    """Return a published finding as Markdown."""
    result = read_result(finding, RESULTS / f"{name}.json")
    assert result, f"results/findings/{name}.json: its conditions are not those of conf/finding/{name}.yaml"
    verdict, outcomes = judge(finding.expected, result["by_seed"])
    measured = "; ".join(f"`{each.quantity}` {numbers(each)}" for each in outcomes)
    text = f"**{verdict}**: {finding.claim} ({finding.source}) {measured}. {finding.remark}"
    return f"### {name}\n\n{text}\n\n![{name}](../results/findings/{name}.svg)\n\n"


def document() -> str:
    """Return the text of docs/findings.md, with the findings that results/findings has now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    sections = (section(*each) for each in load_findings().items())
    return f"{before}{BEGIN}\n{''.join(sections)}{END}{after}"


def write_document() -> None:
    """Write docs/findings.md, and the pictures of results/findings."""
    for name, finding in load_findings().items():
        if result := read_result(finding, RESULTS / f"{name}.json"):
            figure(finding.picture, result["rows"]).save(RESULTS / f"{name}.svg")
    PAGE.write_text(document(), encoding="utf-8")


def figure(picture: Picture, rows: list[tuple[str, Any, float]]) -> alt.LayerChart:
    """Return a picture: a colour per arm, a point per seed, and a line or a tick at the seeds' means.
    ``rows``: arm, x, y."""
    is_log = picture.y_scale == "log"
    numbers = [(arm, x, float(y)) for arm, x, y in rows]  # y of a diverged run is "NaN"
    data = [{"arm": arm, "x": x, "y": y} for arm, x, y in numbers if isfinite(y) and (y > 0 or not is_log)]

    # with ``format`` alone, ticks at 100, 200, … would read 1e+2, 2e+2, …
    label = "datum.label && format(datum.value, '~g')"
    axis = alt.Axis(labelExpr=label, format="~g", tickCount=6, gridOpacity=0.4)
    top = alt.Undefined if picture.y_max is None else picture.y_max
    y = alt.Y("y:Q", title=None, scale=alt.Scale(type=picture.y_scale, zero=False, domainMax=top), axis=axis)
    if picture.x_scale == "names":
        angle = -30 if len({x for _, x, _ in rows}) > 4 else 0
        x = alt.X("x:N", sort=None, title=picture.x or None, axis=alt.Axis(labelAngle=angle))
    else:
        scale = alt.Scale(type=picture.x_scale, zero=False, nice=picture.x_scale != "log")
        x = alt.X("x:Q", title=picture.x, scale=scale, axis=axis)
    color = alt.Color("arm:N", sort=None, title=None, legend=alt.Legend(labelLimit=260, symbolOpacity=1))

    chart = alt.Chart(alt.InlineData(values=data), width=430, height=240).encode(x=x, y=y, color=color)
    layers = [chart.mark_point(filled=True, size=14, opacity=0.55, clip=True)]
    means = chart.encode(y=y.aggregate("mean"))
    if picture.mark == "line":
        layers.append(means.mark_line(strokeWidth=1.6, clip=True))
    elif picture.x_scale == "names":
        layers.append(means.mark_tick(thickness=2))
    # above the picture: beside it, the text would run into the labels if a reader's font is wider
    title = alt.TitleParams(picture.y, anchor="start", fontSize=11)
    padding = {"left": 8, "right": 24, "top": 5, "bottom": 5}
    # aria makes the file ten times as large
    return alt.layer(*layers, title=title, padding=padding).configure(aria=False)
