"""A finding's picture: a colour per arm, a point per seed, and a line or a tick at the seeds' means."""

from math import isfinite
from typing import Any

import altair as alt

from findings.finding import Picture

Rows = list[tuple[str, Any, float]]  # (arm, x, y)


def figure(picture: Picture, rows: Rows) -> alt.LayerChart:
    is_log = picture.y_scale == "log"
    data = [{"arm": arm, "x": x, "y": y} for arm, x, y in rows if isfinite(y) and (y > 0 or not is_log)]
    arms = [*dict.fromkeys(arm for arm, _, _ in rows)]

    # by ``format`` alone, ticks at 100, 200, … would be 1e+2, 2e+2, …
    numbers = "datum.label && format(datum.value, '~g')"
    axis = alt.Axis(labelExpr=numbers, format="~g", tickCount=6, gridOpacity=0.4)
    y = alt.Y("y:Q", title=picture.y, scale=alt.Scale(type=picture.y_scale, zero=False), axis=axis)
    if picture.x_scale == "names":
        angle = -30 if len({x for _, x, _ in rows}) > 4 else 0
        x = alt.X("x:N", sort=None, title=picture.x or None, axis=alt.Axis(labelAngle=angle))
    else:
        scale = alt.Scale(type=picture.x_scale, zero=False, nice=picture.x_scale != "log")
        x = alt.X("x:Q", title=picture.x, scale=scale, axis=axis)
    color = alt.Color("arm:N", sort=arms, title=None, legend=alt.Legend(labelLimit=260, symbolOpacity=1))

    chart = alt.Chart(alt.InlineData(values=data), width=430, height=240).encode(x=x, y=y, color=color)
    means = chart.encode(y=y.aggregate("mean"))
    layers = [chart.mark_point(filled=True, size=14, opacity=0.55)]
    if picture.mark == "line":
        layers.append(means.mark_line(strokeWidth=1.6))
    elif picture.x_scale == "names":
        layers.append(means.mark_tick(thickness=2))
    # a reader's font may be wider than the one by which the figure is laid out
    padding = {"left": 24, "right": 24, "top": 5, "bottom": 5}
    # aria makes the file ten times as large
    return alt.layer(*layers, padding=padding).configure(aria=False)
