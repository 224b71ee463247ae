"""A finding's picture, as Vega-Lite: a colour per arm, a point per seed, a line through their means."""

from typing import Any

from comparison.figures import Spec, color_of, number, rounded, spec
from findings.finding import Finding

Rows = list[tuple[str, Any, float]]  # (arm, x, y)


def picture(finding: Finding, rows: Rows) -> Spec:
    titles = finding.picture
    named = titles.x_scale == "names"
    arms = list(dict.fromkeys(arm for arm, _, _ in rows))
    names = {x for _, x, _ in rows}
    color = {
        "field": "arm",
        "title": None,
        "scale": {"domain": arms, "range": [color_of(i) for i in range(len(arms))]},
        "legend": {"orient": "right", "labelLimit": 260, "symbolOpacity": 1},
    }
    axis = {"format": "~g", "tickCount": 6}
    x: Spec = {"field": "x", "title": titles.x or None}
    if named:
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -30 if len(names) > 4 else 0}}
    else:
        scale = {"type": titles.x_scale, "zero": False, "nice": titles.x_scale != "log"}
        x |= {"type": "quantitative", "scale": scale, "axis": axis}
    y = number("y", titles.y, scale={"type": titles.y_scale, "zero": False}, axis=axis)
    data = [
        {"arm": arm, "x": a if named else rounded(float(a)), "y": rounded(b)}
        for arm, a, b in rows
        if titles.y_scale == "linear" or b > 0
    ]
    points = {
        "mark": {"type": "point", "filled": True, "size": 14, "opacity": 0.55},
        "encoding": {"x": x, "y": y, "color": color},
    }
    mean = {"type": "line", "strokeWidth": 1.6} if titles.mark == "line" else {"type": "tick", "thickness": 2}
    means = {"mark": mean, "encoding": {"x": x, "y": y | {"aggregate": "mean"}, "color": color}}
    layer = [points, means] if titles.mark == "line" or named else [points]
    drawn = spec(width=430, height=240, data={"values": data}, layer=layer)
    drawn["config"] = drawn["config"] | {"aria": False}  # a label per point makes the file ten times as large
    return drawn
