"""The figures of a report: which there are, each with its rows and its description in Vega-Lite."""

from collections.abc import Iterator
from dataclasses import dataclass

from comparison.curves import Rows, curves, maps, rounded
from comparison.drawing import glance
from comparison.drawing.specs import AXES, Spec, curve, dots, grid, heat_map, loss_by_rate, strip
from comparison.groups import title
from comparison.published import CURVES
from comparison.rates import LOSS
from comparison.report import Report
from comparison.settings import tried


@dataclass
class Figure:
    """A figure of a report."""

    kind: str  # differences, grid, trials, curves, rates or maps
    name: str  # the metric or statistic
    spec: Spec
    rows: Rows


def labels(report: Report) -> dict[str, str]:
    """Return the titles of all groups in a report's figures, with their labels."""
    families = [row.family for row in report.rows] + [entry.family for entry in report.sensitivities]
    leaking = {title(family.keys) for family in families if any(run.leaks for run in family.runs)}
    names = dict.fromkeys(title(family.keys) for family in families)
    return {name: f"{name} LEAKS" if name in leaking else name for name in names}


def all_figures(report: Report) -> Iterator[Figure]:
    """Yield the figures of a report. A group has the same colour in each."""
    groups, names = {row.title: row.group for row in report.rows}, labels(report)
    if rows := glance.differences(report):
        yield Figure("differences", report.metric, dots(rows, glance.difference_in_words(report)), rows)
    if rows := glance.crossed(report):
        yield Figure("grid", report.metric, grid(rows, report.metric), rows)
    if rows := tried(report.choices):
        yield Figure("trials", report.metric, strip(rows, report.choices[0].arm.criterion), rows)
    for metric in CURVES:
        if rows := curves(groups, metric):
            yield Figure("curves", metric, curve(names, metric), rows)
    rows = [
        {"group": title(entry.family.keys), "rate": rate, "loss": rounded(loss)}
        for entry in report.sensitivities
        for rate, loss in zip(entry.rates, entry.losses, strict=True)
    ]
    if rows:
        yield Figure("rates", LOSS, loss_by_rate(names, LOSS), rows)
    for statistic, rows in maps(groups).items():
        if rows:
            yield Figure("maps", statistic, heat_map(statistic, rows, names), rows)


def files(figure: Figure, every_axis: bool) -> dict[str, Spec]:
    """Return file name -> spec of a figure; a loss has a file per axis if ``every_axis``."""
    with_rows = figure.spec | {"data": {"values": figure.rows}}
    if figure.kind != "curves":
        names = {"grid": "map", "rates": "learning-rates", "maps": f"map-{figure.name}"}
        return {names.get(figure.kind, figure.kind): with_rows}
    x, encoding = figure.spec["encoding"]["x"], figure.spec["encoding"]
    return {
        f"{figure.name}-against-{axis}": with_rows
        | {"encoding": encoding | {"x": x | {"field": axis, "title": AXES[axis]}}}
        for axis in (AXES if every_axis and "loss" in figure.name else ("step",))
    }
