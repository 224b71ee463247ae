"""Describe figures in Vega-Lite: one description is drawn on the page and saved as a file for a paper.

https://vega.github.io/vega-lite/docs. Lines and text are ``currentColor``: black in a file, light on a dark
page.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.curves import Rows
from comparison.drawing import glance

Spec = dict[str, Any]
Labels = Mapping[str, str]  # the title of each group -> what a legend shows, which marks leaks
DASHES = [1, 0], [5, 3], [2, 2], [9, 3, 2, 3], [12, 4]  # of the first ten groups, of the next ten, …
# Tableau's ten colours, which most colour-blind people can tell apart; more groups repeat them, dashed.
COLORS = "#4e79a7 #f28e2b #e15759 #76b7b2 #59a14f #edc948 #b07aa1 #ff9da7 #9c755f #bab0ac".split()
MANY = 24  # the most groups for which curves have points and maps are saved
AXES = {
    "step": "step",
    "tokens": "tokens trained on",
    "seconds": "seconds",
    "operations": "floating-point operations",
}
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


def number(field: str, title: str | Sequence[str], **options: Any) -> Spec:
    """Return a numeric channel whose axis need not include 0."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}} | options


def category(name: str, **options: Any) -> Spec:
    return {"field": name, "type": "ordinal", "title": name} | options


def tooltip(*fields: str, **formats: str) -> Spec:
    """Return a tooltip that shows ``fields``, and the fields of ``formats`` (field -> format)."""
    formatted = [{"field": field, "format": form} for field, form in formats.items()]
    return {"tooltip": [{"field": field} for field in fields] + formatted}


def labels_shown(labels: Labels) -> Spec:
    """Return the option by which a legend or header shows the labels of titles."""
    return {"labelExpr": f"({json.dumps(dict(labels))})[datum.label]"}


def by_group(labels: Labels) -> Spec:
    """Return an encoding in which a group has one colour and dash in all figures."""
    domain, numbers = list(labels), range(len(labels))
    colors = {"domain": domain, "range": [color_of(i) for i in numbers]}
    dashes = {"domain": domain, "range": [DASHES[i // len(COLORS) % len(DASHES)] for i in numbers]}
    return {
        "color": {"field": "group", "title": None, "scale": colors, "legend": labels_shown(labels)},
        "strokeDash": {"field": "group", "legend": None, "scale": dashes},
    }


def curve(labels: Labels, metric: str) -> Spec:
    """Return a figure with a line and an interval per group. Rows: see comparison.curves.curves."""
    group, y = by_group(labels), number("mean", metric)
    lines = {"symbolType": "stroke", "symbolOpacity": 1, "symbolLimit": 0, "labelLimit": 300}
    group["color"]["legend"] = labels_shown(labels) | lines
    line = LINE | {"point": {"size": 9} if len(labels) <= MANY else False}
    tip = tooltip("group", **dict.fromkeys(("step", "mean", "low", "high"), ",.4~f"))
    x = {"field": "step", "type": "quantitative", "title": AXES["step"], "axis": {"format": "~s"}}
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


def dots(rows: Rows, x_title: Sequence[str]) -> Spec:
    """Return a figure of the differences from the baseline: per group a dot with its interval, and a tick for
    each seed. Rows: see comparison.drawing.glance.differences."""
    # zindex: where the labels stand above the lines, the zero line passes behind them
    axis = {"labelLimit": 320, "labelFontSize": 12, "ticks": False, "domain": False, "zindex": 1}
    y = {"y": category("group", sort=None, title=None, axis=axis)}
    drawn = {row["outcome"] for row in rows if row["mean"] is not None}
    outcomes = [outcome for outcome in glance.COLORS if outcome in drawn]
    words = f"({glance.WORDS})[datum.label]"
    legend = {"orient": "bottom", "columns": 2, "labelExpr": words, "labelFontSize": 12}
    by_outcome = {"field": "outcome", "type": "nominal", "title": None, "legend": legend}
    colors = [glance.COLORS[outcome] for outcome in outcomes]
    fills = ["transparent" if outcome == "open" else glance.COLORS[outcome] for outcome in outcomes]
    stroke = by_outcome | {"scale": {"domain": outcomes, "range": colors}}
    fill = by_outcome | {"scale": {"domain": outcomes, "range": fills}}
    tip = tooltip("group", "outcome", mean="+.4f", low="+.4f", high="+.4f")
    room = 50 if any(row["mark"] for row in rows) else 0  # pixels, for a mark to the right of the last dot
    axis_x = {"titleAnchor": "end", "titleAlign": "right", "tickCount": {"expr": "ceil(width / 70)"}}
    x = number("mean", x_title, scale={"padding": room}, axis=axis_x)
    ends = {"x": x | {"field": "low"}, "x2": {"field": "high"}, "stroke": stroke}
    mark = {"x": {"field": "mark_at", "type": "quantitative"}, "text": {"field": "mark"}}
    bold = {"fontSize": 11, "fontWeight": 600, "color": "currentColor"}
    text = {"type": "text", "align": "left", "dx": 9} | bold
    return spec(
        usermeta={"list": True},
        width=640,
        height=24 * len(rows),
        autosize={"type": "fit-x", "contains": "padding"},
        padding={"left": 24, "right": 5, "top": 5, "bottom": 5},  # other fonts are wider than this machine's
        layer=[
            {
                "mark": {"type": "rule", "color": "currentColor", "opacity": 0.6},
                "encoding": {"x": {"datum": 0}},
            },
            {
                "transform": [{"flatten": ["seeds"]}],
                "mark": {"type": "tick", "thickness": 1, "color": "currentColor", "opacity": 0.7, "size": 9},
                "encoding": y | {"x": x | {"field": "seeds"}},
            },
            {"mark": {"type": "rule", "strokeWidth": 2.5}, "encoding": y | ends},
            {
                "mark": {"type": "point", "size": 75, "strokeWidth": 2, "opacity": 1},
                "encoding": y | {"x": x, "stroke": stroke, "fill": fill} | tip,
            },
            {"mark": text, "encoding": y | mark},
        ],
    )


def grid(rows: Rows, metric: str) -> Spec:
    """Return a figure of two crossed factors: a cell per group, the brighter the lower its mean. The colours
    end at three times the median's distance from the best, so that collapsed cells do not leave one colour
    for the rest. Rows: see comparison.drawing.glance.crossed."""
    means = sorted(row["mean"] for row in rows if row["mean"] is not None) or [0.0]
    low, half = means[0], means[len(means) // 2]
    end = min(means[-1], low + 3 * (half - low)) if half > low else max(means[-1], low + 1)
    axis = {"labelFontSize": 12, "ticks": False, "domain": False}
    scale = {"scheme": "viridis", "reverse": True, "domain": [low, end], "clamp": True}
    color = number("mean", metric, scale=scale, legend={"orient": "bottom", "gradientLength": 200})
    text_colors = [
        {"test": "datum.mean === null", "value": "currentColor"},
        {"test": f"datum.mean < {(low + end) / 2}", "value": "black"},
    ]
    text_color = {"color": {"condition": text_colors, "value": "white"}}
    tip = tooltip("group", "mark", "trials", "seeds", mean=".4f")
    has_mean = {"test": "datum.mean !== null", "field": "mean", "format": ".3f"}
    loss, mark = {"condition": has_mean, "value": ""}, {"field": "mark"}
    columns = len({row["column"] for row in rows})
    return spec(
        usermeta={"least": 150 + 45 * columns, "most": 150 + 110 * columns},  # widths on the page, in pixels
        width=640,
        height=34 * len({row["row"] for row in rows}),
        autosize={"type": "fit-x", "contains": "padding"},
        encoding={
            "x": category("column", sort=None, title=None, axis=axis | {"orient": "top", "labelAngle": -30}),
            "y": category("row", sort=None, title=None, axis=axis),
        },
        layer=[
            {"mark": "rect", "encoding": {"color": color} | tip},
            {"mark": {"type": "text", "fontSize": 12}, "encoding": {"text": loss} | text_color},
            {"mark": {"type": "text", "fontSize": 9, "dy": 11}, "encoding": {"text": mark} | text_color},
        ],
    )


def strip(rows: Rows, metric: str) -> Spec:
    """Return a figure of how much the settings matter: a line per group with a dot for each setting that was
    tried, and a cross at the right end for each that diverged. Rows: see comparison.settings.tried."""
    axis = {"labelLimit": 320, "labelFontSize": 12, "ticks": False, "domain": False, "grid": True}
    ticks = {"tickCount": {"expr": "ceil(width / 70)"}}
    worst = max((row["loss"] for row in rows if row["loss"] is not None), default=0.0)
    outcomes = {"chosen": glance.BLUE, "other": glance.GREY, "diverged": glance.ORANGE}
    drawn = [outcome for outcome in outcomes if any(row["outcome"] == outcome for row in rows)]
    by_outcome = {"field": "outcome", "type": "nominal", "title": None}
    legend = {"orient": "bottom", "labelFontSize": 12}
    color = by_outcome | {"scale": {"domain": drawn, "range": [outcomes[x] for x in drawn]}, "legend": legend}
    shapes = ["cross" if outcome == "diverged" else "circle" for outcome in drawn]
    opacity = {"condition": {"test": "datum.outcome === 'other'", "value": 0.55}, "value": 1}
    return spec(
        usermeta={"list": True},
        width=640,
        height=22 * len({row["group"] for row in rows}),
        autosize={"type": "fit-x", "contains": "padding"},
        padding={"left": 24, "right": 5, "top": 5, "bottom": 5},
        transform=[{"calculate": f"datum.loss === null ? {worst} : datum.loss", "as": "at"}],
        mark={"type": "point", "filled": True, "size": 60},
        encoding={
            "x": number("at", f"{metric} of the first trials, a dot for each setting", axis=ticks),
            "y": category("group", sort=None, title=None, axis=axis),
            "color": color,
            "shape": by_outcome | {"scale": {"domain": drawn, "range": shapes}},
            "opacity": opacity,
        }
        | tooltip("group", "settings", "outcome", loss=".4f"),
    )


def heat_map(statistic: str, rows: Rows, labels: Labels) -> Spec:
    """Return a figure with a map per group, the last block on top. Rows: group, step, block, value."""
    values = [row["value"] for row in rows]
    is_wide = min(values, default=0) > 0 and max(values) > 30 * min(values)
    scale = {"type": "log"} if is_wide else {"zero": False}
    encoding = {
        "x": category("step", axis={"labelOverlap": True, "labelAngle": 0}),
        "y": category("block", sort="descending"),
        "color": number("value", statistic, scale={"scheme": "viridis"} | scale),
    }
    height = max(60, min(220, 18 * len({row["block"] for row in rows})))
    encoding |= tooltip("group", "step", "block", value=".4g")
    panel = {"width": 190, "height": height, "mark": "rect", "encoding": encoding}
    facet = {"field": "group", "title": None, "sort": None, "header": labels_shown(labels)}
    return spec(facet=facet, columns=4, spec=panel)


def profile(labels: Labels) -> Spec:
    """Return a figure of a statistic at one step, by block. Rows: group, block, value."""
    encoding = {"x": category("block", axis={"labelAngle": 0}), "y": number("value", "")}
    encoding |= tooltip("group", "block", value=".4g") | by_group(labels)
    return spec(width=640, height=260, mark=LINE, encoding=encoding)


def loss_by_rate(labels: Labels, metric: str) -> Spec:
    """Return a figure of loss by learning rate. Rows: group, rate, loss."""
    x = number("rate", "learning rate", scale={"type": "log"}, axis={"format": "~g"})
    encoding = {"x": x, "y": number("loss", f"{metric}, at most the initial loss")}
    encoding |= tooltip("group", rate="g", loss=".4f") | by_group(labels)
    return spec(width=640, height=300, mark=LINE, encoding=encoding)


def spec(**parts: Any) -> Spec:
    """Return a Vega-Lite spec with the shared defaults."""
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {"$schema": schema, "config": STYLE} | parts
