"""A finding's picture, as Vega-Lite: a colour an arm, a point each seed, a line through their means."""

from typing import Any

from comparison.figures import Spec, color_of, plain, spec
from findings.finding import Finding

Rows = list[tuple[str, Any, float]]  # (arm, x, y)


def picture(finding: Finding, rows: Rows) -> Spec:
    titles = finding.picture
    arms = list(dict.fromkeys(arm for arm, _, _ in rows))
    named = titles.x_scale == "names"
    color = {
        "field": "arm",
        "title": None,
        "scale": {"domain": arms, "range": [color_of(i) for i in range(len(arms))]},
        "legend": {"orient": "right", "labelLimit": 260, "symbolOpacity": 1},
    }
    x: Spec = {"field": "x", "title": titles.x or None}
    if named:
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -30 if len(names(rows)) > 4 else 0}}
    else:
        x |= {
            "type": "quantitative",
            "scale": {"type": titles.x_scale, "zero": False, "nice": titles.x_scale != "log"},
            "axis": {"format": "~g", "tickCount": 6},
        }
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "title": titles.y,
        "scale": {"type": titles.y_scale, "zero": False},
        "axis": {"format": "~g", "tickCount": 6},
    }
    drawn = [
        {"arm": arm, "x": a if named else plain(float(a)), "y": plain(b)}
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
    found = spec(width=430, height=240, data={"values": drawn}, layer=layer)
    found["config"] = found["config"] | {"aria": False}  # a label a point makes the file ten times as large
    return found


def names(rows: Rows) -> list[Any]:
    return list(dict.fromkeys(x for _, x, _ in rows))
