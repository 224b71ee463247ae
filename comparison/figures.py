"""Figures in Vega-Lite: one description of a figure is drawn on the page and saved as a file for a paper.

https://vega.github.io/vega-lite/docs. A description names its data ``rows``: a list of
dicts, which ``filled`` inserts. Lines and text are ``currentColor``: black in a file, light on a dark page.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comparison.curves import Band, Map
from comparison.rates import Sensitivity

Spec = dict[str, Any]
Rows = list[dict[str, Any]]
FORMATS = (".svg", ".png", ".pdf")  # file formats of a saved figure
# Tableau's ten, which most colour-blind people can tell apart; further groups repeat them, dashed.
COLORS = "#4e79a7 #f28e2b #e15759 #76b7b2 #59a14f #edc948 #b07aa1 #ff9da7 #9c755f #bab0ac".split()
MANY = 24  # groups above which a figure has lines without points, and there are no maps
AXES = {"step": "step", "tokens": "tokens trained on", "seconds": "seconds"}
LINE: Spec = {"type": "line", "point": True, "strokeWidth": 1.6}
STYLE: Spec = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{f"{part}Color": "currentColor" for part in ("label", "title", "domain", "tick", "grid")},
        "gridOpacity": 0.12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "titleFontWeight": "normal"},
    "header": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12},
}


def color_of(index: int) -> str:
    return COLORS[index % len(COLORS)]


def number(field: str, title: str, **options: Any) -> Spec:
    """Return a numeric channel, its axis not forced to include 0."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}} | options


def category(name: str, **options: Any) -> Spec:
    return {"field": name, "type": "ordinal", "title": name} | options


def tooltip(*fields: str, **formats: str) -> Spec:
    """Return a tooltip with ``fields``, and with the fields of ``formats``, each in its format."""
    formatted = [{"field": field, "format": form} for field, form in formats.items()]
    return {"tooltip": [{"field": field} for field in fields] + formatted}


def by_group(titles: Sequence[str]) -> Spec:
    """Return the channels of the colour and dash of each group, which are the same in every figure."""
    domain, numbers = list(titles), range(len(titles))
    colors = {"domain": domain, "range": [color_of(i) for i in numbers]}
    dashes = {"domain": domain, "range": [[1, 0] if i < len(COLORS) else [5, 3] for i in numbers]}
    return {
        "color": {"field": "group", "title": None, "scale": colors},
        "strokeDash": {"field": "group", "legend": None, "scale": dashes},
    }


def curves(titles: Sequence[str], metric: str, axis: str = "step") -> Spec:
    """Return a line per group with its interval. Rows: group, step, tokens, seconds, mean, low, high."""
    group, y = by_group(titles), number("mean", metric)
    line = LINE | {"point": len(titles) <= MANY and {"size": 9}}
    tip = tooltip("group", **dict.fromkeys(("step", "mean", "low", "high"), ",.4~f"))
    x = {"field": axis, "type": "quantitative", "title": AXES[axis], "axis": {"format": "~s"}}
    return spec(
        width=640,
        height=320,
        encoding={"x": x, "color": group["color"]},
        layer=[
            {
                "mark": {"type": "area", "opacity": 0.18, "line": False},
                "encoding": {"y": y | {"field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": line, "encoding": {"y": y, "strokeDash": group["strokeDash"]} | tip},
        ],
    )


def curve_rows(titles: Sequence[str], bands: Sequence[Band | None]) -> Rows:
    return [
        {"group": title} | dict(zip(vars(band), map(rounded, point), strict=True))
        for title, band in zip(titles, bands, strict=True)
        if band
        for point in zip(*vars(band).values(), strict=True)
    ]


def heat(statistic: Map, columns: int = 4) -> Spec:
    """Return a map per group: steps to the right, the last block on top. Rows: group, step, block, value."""
    values = np.concatenate([array.ravel() for array in statistic.values])
    values = values[np.isfinite(values)]
    wide = len(values) and values.min() > 0 and values.max() > 30 * values.min()
    scale = {"type": "log"} if wide else {"zero": False}
    encoding = {
        "x": category("step", axis={"labelOverlap": True, "labelAngle": 0}),
        "y": category("block", sort="descending"),
        "color": number("value", statistic.name, scale={"scheme": "viridis"} | scale),
    }
    height = max(60, min(220, 18 * len(statistic.blocks)))
    encoding |= tooltip("group", "step", "block", value=".4g")
    inner = {"width": 190, "height": height, "mark": "rect", "encoding": encoding}
    return spec(facet={"field": "group", "title": None, "sort": None}, columns=columns, spec=inner)


def heat_rows(titles: Sequence[str], statistic: Map) -> Rows:
    return [
        {"group": title, "step": int(step), "block": block, "value": rounded(value)}
        for title, values in zip(titles, statistic.values, strict=True)
        for block, line in zip(statistic.blocks, values, strict=True)
        for step, value in zip(statistic.steps, line, strict=True)
        if math.isfinite(value)
    ]


def profile(titles: Sequence[str]) -> Spec:
    """Return a figure of a statistic at one step, by block. Rows: group, block, value."""
    encoding = {"x": category("block", axis={"labelAngle": 0}), "y": number("value", "")}
    encoding |= tooltip("group", "block", value=".4g") | by_group(titles)
    return spec(width=640, height=260, mark=LINE, encoding=encoding)


def rates(titles: Sequence[str], metric: str) -> Spec:
    """Return a figure of loss by learning rate. Rows: group, rate, loss."""
    x = number("rate", "learning rate", scale={"type": "log"}, axis={"format": "~g"})
    encoding = {"x": x, "y": number("loss", f"{metric}, at most the initial loss")}
    encoding |= tooltip("group", rate="g", loss=".4f") | by_group(titles)
    return spec(width=640, height=300, mark=LINE, encoding=encoding)


def rate_rows(titles: Sequence[str], sensitivities: Sequence[Sensitivity]) -> Rows:
    return [
        {"group": title, "rate": rate, "loss": rounded(loss)}
        for title, family in zip(titles, sensitivities, strict=True)
        for rate, loss in zip(family.rates, family.losses, strict=True)
    ]


def spec(**parts: Any) -> Spec:
    """Return a Vega-Lite spec with the shared defaults."""
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {"$schema": schema, "config": STYLE, "data": {"name": "rows"}} | parts


def filled(description: Spec, rows: Rows) -> Spec:
    return description | {"data": {"name": "rows", "values": rows}}


def svg(description: Spec) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(description))


def save(description: Spec, out: Path) -> None:
    """Draw a figure into a file whose ending is one of FORMATS. Raises OSError if it cannot be written."""
    import vl_convert

    if out.suffix == ".svg":
        out.write_text(svg(description), encoding="utf-8")
    elif out.suffix == ".png":
        out.write_bytes(vl_convert.vegalite_to_png(description, scale=2))
    else:
        out.write_bytes(vl_convert.vegalite_to_pdf(description))


def rounded(value: float) -> float | None:
    """Return the value with five digits, more than a figure shows; None if non-finite: JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
