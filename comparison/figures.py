"""Figures as Vega-Lite: one description of each, drawn by the page with its switches and saved for a paper.

https://vega.github.io/vega-lite/docs. A description has its data under the name ``rows``: a list of
dicts, which ``filled`` puts in. Lines and text are ``currentColor``: black in a file, light on a dark page.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison.curves import Band, Map
from comparison.rates import Sensitivity

Spec = dict[str, Any]
FORMATS = (".svg", ".png", ".pdf")  # that a figure is saved in
Rows = list[dict[str, Any]]
COLORS = (  # Tableau's ten, told apart also by most who are colour-blind; then the same, dashed
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f"),
    "#bab0ac",
)
MANY = 24  # groups; of more, a figure shows lines alone, and no maps
AXES = {"step": "step", "tokens": "tokens trained on", "seconds": "seconds"}
STYLE: Spec = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "titleFontWeight": "normal"},
    "header": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12},
}


def color_of(index: int) -> str:
    return COLORS[index % len(COLORS)]


def groups_scale(titles: Sequence[str]) -> Spec:
    """The colour and dash of each group, the same in every figure."""
    dashes = [[1, 0] if i < len(COLORS) else [5, 3] for i in range(len(titles))]
    return {
        "color": {
            "field": "group",
            "title": None,
            "scale": {"domain": list(titles), "range": [color_of(i) for i in range(len(titles))]},
        },
        "strokeDash": {
            "field": "group",
            "legend": None,
            "scale": {"domain": list(titles), "range": dashes},
        },
    }


def curves(titles: Sequence[str], metric: str, axis: str = "step") -> Spec:
    """A line a group with the interval of its mean. Rows have group, step, tokens, seconds, mean, low,
    high."""
    x = {"field": axis, "type": "quantitative", "title": AXES[axis], "axis": {"format": "~s"}}
    y = {"field": "mean", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    tip = [{"field": field, "format": ",.4~f"} for field in ("step", "mean", "low", "high")]
    scale = groups_scale(titles)
    return spec(
        width=640,
        height=320,
        encoding={"x": x, "color": scale["color"]},
        layer=[
            {
                "mark": {"type": "area", "opacity": 0.18, "line": False},
                "encoding": {
                    "y": y | {"field": "low"},
                    "y2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "line", "strokeWidth": 1.6, "point": len(titles) <= MANY and {"size": 9}},
                "encoding": {
                    "y": y,
                    "strokeDash": scale["strokeDash"],
                    "tooltip": [{"field": "group"}, *tip],
                },
            },
        ],
    )


def curve_rows(titles: Sequence[str], bands: Sequence[Band | None]) -> Rows:
    return [
        {"group": title} | dict(zip(("step", "tokens", "seconds", "mean", "low", "high"), point, strict=True))
        for title, found in zip(titles, bands, strict=True)
        if found
        for point in zip(
            *(map(plain, array) for array in (found.step, found.tokens, found.seconds)),
            *(map(plain, array) for array in (found.mean, found.low, found.high)),
            strict=True,
        )
    ]


def heat(found: Map, columns: int = 4) -> Spec:
    """A map a group: the step from left to right, the last block on top. Rows have group, step, block,
    value."""
    x = {"field": "step", "type": "ordinal", "title": "step", "axis": {"labelOverlap": True, "labelAngle": 0}}
    y = {"field": "block", "type": "ordinal", "title": "block", "sort": "descending"}
    color = {
        "field": "value",
        "type": "quantitative",
        "title": found.name,
        "scale": {"scheme": "viridis"} | ({"type": "log"} if spread(found) else {"zero": False}),
    }
    tip = [{"field": field} for field in ("group", "step", "block")] + [{"field": "value", "format": ".4g"}]
    inner = {
        "width": 190,
        "height": max(60, min(220, 18 * len(found.blocks))),
        "mark": "rect",
        "encoding": {"x": x, "y": y, "color": color, "tooltip": tip},
    }
    facet = {"field": "group", "title": None, "sort": None}
    return spec(facet=facet, columns=columns, spec=inner)


def spread(found: Map) -> bool:
    """Whether its values span more than a linear scale shows."""
    values = [float(v) for array in found.values for v in array.ravel() if math.isfinite(v)]
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def heat_rows(titles: Sequence[str], found: Map) -> Rows:
    return [
        {"group": title, "step": int(step), "block": block, "value": plain(value)}
        for title, values in zip(titles, found.values, strict=True)
        for block, line in zip(found.blocks, values, strict=True)
        for step, value in zip(found.steps, line, strict=True)
        if math.isfinite(value)
    ]


def profile(titles: Sequence[str], name: str) -> Spec:
    """A statistic through the depth, at one step. Rows have group, block, value."""
    x = {"field": "block", "type": "ordinal", "title": "block", "axis": {"labelAngle": 0}}
    y = {"field": "value", "type": "quantitative", "title": name, "scale": {"zero": False}}
    mark = {"type": "line", "point": True, "strokeWidth": 1.6}
    tip = [{"field": "group"}, {"field": "block"}, {"field": "value", "format": ".4g"}]
    return spec(
        width=640, height=260, mark=mark, encoding={"x": x, "y": y, "tooltip": tip} | groups_scale(titles)
    )


def rates(titles: Sequence[str], metric: str) -> Spec:
    """Loss against learning rate. Rows have group, rate, loss."""
    x = {"field": "rate", "type": "quantitative", "title": "learning rate", "scale": {"type": "log"}}
    y = {
        "field": "loss",
        "type": "quantitative",
        "title": f"{metric}, at most that of the start",
        "scale": {"zero": False},
    }
    mark = {"type": "line", "point": True, "strokeWidth": 1.6}
    tip = [{"field": "group"}, {"field": "rate", "format": "g"}, {"field": "loss", "format": ".4f"}]
    x |= {"axis": {"format": "~g"}}
    return spec(
        width=640, height=300, mark=mark, encoding={"x": x, "y": y, "tooltip": tip} | groups_scale(titles)
    )


def rate_rows(titles: Sequence[str], found: Sequence[Sensitivity]) -> Rows:
    return [
        {"group": title, "rate": rate, "loss": plain(loss)}
        for title, one in zip(titles, found, strict=True)
        for rate, loss in zip(one.rates, one.losses, strict=True)
    ]


def spec(**parts: Any) -> Spec:
    """With what all have in common."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": STYLE,
        "data": {"name": "rows"},
    } | parts


def filled(description: Spec, rows: Rows) -> Spec:
    return description | {"data": {"name": "rows", "values": rows}}


def svg(description: Spec) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(description))


def save(description: Spec, out: Path) -> None:
    """Draw it into a file, by whose ending: one of FORMATS. Raises OSError where it cannot be written."""
    import vl_convert

    if out.suffix == ".svg":
        out.write_text(svg(description), encoding="utf-8")
    elif out.suffix == ".png":
        out.write_bytes(vl_convert.vegalite_to_png(description, scale=2))
    else:
        out.write_bytes(vl_convert.vegalite_to_pdf(description))


def plain(value: float) -> float | None:
    """To five digits, which no figure shows; JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
