"""A finding's picture, as Vega-Lite: a colour per arm, a point per seed, a line through the seeds' means."""

from typing import Any

from comparison.curves import rounded
from comparison.drawing.specs import Spec, color_of, number, spec
from findings.finding import Finding

Rows = list[tuple[str, Any, float]]  # (arm, x, y)


def figure_spec(finding: Finding, rows: Rows) -> Spec:
    axes = finding.picture
    has_names = axes.x_scale == "names"
    arms = list(dict.fromkeys(arm for arm, _, _ in rows))
    names = {x for _, x, _ in rows}
    color = {
        "field": "arm",
        "title": None,
        "scale": {"domain": arms, "range": [color_of(i) for i in range(len(arms))]},
        "legend": {"orient": "right", "labelLimit": 260, "symbolOpacity": 1},
    }
    axis = {"format": "~g", "tickCount": 6}
    x: Spec = {"field": "x", "title": axes.x or None}
    if has_names:
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -30 if len(names) > 4 else 0}}
    else:
        scale = {"type": axes.x_scale, "zero": False, "nice": axes.x_scale != "log"}
        x |= {"type": "quantitative", "scale": scale, "axis": axis}
    y = number("y", axes.y, scale={"type": axes.y_scale, "zero": False}, axis=axis)
    data = [
        {"arm": arm, "x": x_value if has_names else rounded(float(x_value)), "y": rounded(y_value)}
        for arm, x_value, y_value in rows
        if axes.y_scale == "linear" or y_value > 0
    ]
    points = {
        "mark": {"type": "point", "filled": True, "size": 14, "opacity": 0.55},
        "encoding": {"x": x, "y": y, "color": color},
    }
    mark = {"type": "line", "strokeWidth": 1.6} if axes.mark == "line" else {"type": "tick", "thickness": 2}
    means = {"mark": mark, "encoding": {"x": x, "y": y | {"aggregate": "mean"}, "color": color}}
    layer = [points, means] if axes.mark == "line" or has_names else [points]
    figure = spec(width=430, height=240, data={"values": data}, layer=layer)
    figure["config"] = figure["config"] | {"aria": False}  # aria makes the file ten times as large
    return figure
