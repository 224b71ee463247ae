"""Charts by Altair (Vega-Lite), for the page and for files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert

from study.statistics import by_key
from study.table import Table, short

alt.data_transformers.disable_max_rows()
FORMATS = (".svg", ".png", ".pdf")  # file formats of a saved figure
VERSION = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])  # of Vega-Lite
PALETTE = "#4c78a8 #f58518 #e45756 #54a24b #b279a2 #72b7b2 #eeca3b #ff9da6 #9d755d #8c8c8c".split()
# how a setting is drawn
MARKS = {"tried": "circle", "chosen": "diamond", "chosen, at the edge": "triangle-up", "diverged": "cross"}
SIZES = {"tried": 30, "chosen": 170, "chosen, at the edge": 190, "diverged": 90}
Chart = alt.TopLevelMixin
Records = list[dict[str, Any]]


# ---------------------------------------------------------------------------------------------------
# Files


def svg(chart: Chart) -> str:
    return str(vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=VERSION))


def save(chart: Chart, out: Path) -> None:
    """Write a chart to a file whose ending is one of FORMATS. Raises OSError."""
    chart.save(out, scale_factor=2 if out.suffix == ".png" else 1)


# ---------------------------------------------------------------------------------------------------
# Ranges and texts


def fence(values: Sequence[float], reach: float = 1.5) -> tuple[float, float]:
    """Return the smallest and the largest value that is no outlier. An outlier is more than ``reach``
    interquartile ranges below the lower or above the upper quartile (Tukey 1977)."""
    q1, q3 = np.quantile(values, [0.25, 0.75])
    inside = [value for value in values if abs(value - (q1 + q3) / 2) <= (0.5 + reach) * (q3 - q1)]
    return min(inside), max(inside)


def interval_range(table: Table) -> tuple[float, float]:
    """Return the range of differences to draw. It leaves out far outliers and includes 0 and ±matters."""
    ends = [end for row in table.rows for end in (row.low, row.difference, row.high) if end is not None]
    matters = table.study.matters if table.study else 0.0
    low, high = fence(ends or [0.0], reach=3)
    low, high = min(low, -matters), max(high, matters)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def baseline_words(table: Table) -> str:
    bases = sorted({row.baseline for row in table.rows if row.baseline})
    return short(bases[0]) if len(bases) == 1 else "each one's baseline"


def varying(table: Table) -> dict[str, list[str]]:
    """Return the values of each key in which arms differ; "" for an arm without the key."""
    keys = dict.fromkeys(key for row in table.rows for key in row.keys)
    values = {key: [*dict.fromkeys(row.keys.get(key, "") for row in table.rows)] for key in keys}
    return {key: each for key, each in values.items() if len(each) > 1}


def are_numbers(values: Sequence[str]) -> bool:
    try:
        return all(np.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def number_key(table: Table) -> str | None:
    """Return the key for the x axis of a chart of losses: the only key of ``by``, or otherwise the only key
    other than norm and placement in which arms differ. None if there is no such key, or its values are not
    numbers."""
    found = varying(table)
    by = table.study.by if table.study else []
    keys = by if len(by) == 1 else [key for key in found if key not in ("norm", "placement")]
    return keys[0] if len(keys) == 1 and are_numbers(found.get(keys[0], [""])) else None


def grid_keys(table: Table) -> tuple[str, str] | None:
    """Return the two keys of a map. A study has a map if it gives no verdicts and its arms differ in two
    keys, each with at least three values."""
    found = varying(table)
    is_map = table.study and not table.study.verdicts and len(found) == 2
    return (*found,) if is_map and min(map(len, found.values())) >= 3 else None  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------------------
# Charts. Most refer to their data and parameters by name; page.html sets the values.


def ranked(name: str) -> alt.Chart:
    """Return a chart of the data ``name``. Its field ``rank`` is the number of the arm's colour, or −1 if the
    arm is not picked."""
    chart = alt.Chart(alt.NamedData(name)).add_params(alt.param("picked", value=[]))
    return chart.transform_calculate(rank=f"indexof(picked, datum.arm) % {len(PALETTE)}")


def tip(name: str, form: str = ".4f") -> alt.Tooltip:
    return alt.Tooltip(f"{name}:Q", format=form)


def color_of_rank() -> alt.Color:
    scale = alt.Scale(domain=[-1, *range(len(PALETTE))], range=["#888", *PALETTE])
    return alt.Color("rank:N", scale=scale, legend=None)


def curves(low: float, high: float) -> Chart:
    """Return loss curves: the mean and range of each picked arm, and grey lines for the others. ``low`` and
    ``high``: ends of the axis. Its data, ``curves``, are records of arm, step, loss, low and high."""
    y = alt.Y("loss:Q", title="validation loss", scale=alt.Scale(domain=[low, high]))
    x = alt.X("step:Q", axis=alt.Axis(format="~s", tickCount=6))
    base = ranked("curves").encode(x=x, y=y, color=color_of_rank(), detail="arm:N")
    grey = base.transform_filter("datum.rank < 0").mark_line(clip=True, opacity=0.35, strokeWidth=1)
    picked = base.transform_filter("datum.rank >= 0")
    band = picked.mark_area(clip=True, opacity=0.18).encode(y="low:Q", y2="high:Q")
    points = picked.mark_point(clip=True, size=120, filled=True, opacity=0)
    tooltip = ["arm:N", "step:Q", tip("loss"), tip("low"), tip("high")]
    zoom = alt.selection_interval(bind="scales", zoom="wheel![event.ctrlKey]")
    return alt.layer(
        grey.encode(tooltip="arm:N"),
        band,
        picked.mark_line(clip=True),
        points.encode(tooltip=tooltip).add_params(zoom),
    ).properties(width="container", height=340)


def of_blocks() -> alt.Chart:
    """Return a chart of a statistic of the picked arms. Its data, ``blocks``, are records of arm, statistic,
    step, and lists of blocks and values."""
    parameters = alt.param("statistic", value=""), alt.param("at", value=0)
    chart = ranked("blocks").add_params(*parameters)
    return chart.transform_filter("datum.statistic == statistic && datum.rank >= 0")


def heat(n_blocks: int) -> Chart:
    """Return a statistic of each picked arm by step and block, with one colour scale for all arms."""
    lines = "split(replace(datum.label, /=/g, '= '), ' ')"
    axis = alt.Axis(labelExpr=lines, labelLimit=0, labelLineHeight=12, ticks=False, domain=False)
    step = alt.Step(max(12, 56 // n_blocks), **{"for": "offset"})
    # symlog: linear below 1, logarithmic above, where kurtosis and gradients are
    color = alt.Scale(scheme="viridis", type="symlog", constant=1)
    return (
        of_blocks()
        .transform_flatten(["block", "value"])
        .mark_rect()
        .encode(
            x=alt.X("step:O", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("arm:N", title=None, axis=axis, sort=None),
            yOffset=alt.YOffset("block:O", sort="descending"),
            color=alt.Color("value:Q", title=None, scale=color, legend=alt.Legend(orient="top", tickCount=4)),
            tooltip=["arm:N", "statistic:N", "step:Q", "block:O", tip("value", ".4g")],
            stroke=alt.condition("datum.step == at", alt.value("#e22"), alt.value(None)),
            strokeWidth=alt.value(1.5),
        )
        .properties(
            width="container", height=step, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
        )
    )


def profile() -> Chart:
    """Return a statistic by block at the step ``at``, or at the last step before it that the arm logged."""
    return (
        of_blocks()
        .transform_filter("datum.step <= at")
        .transform_joinaggregate(last="max(step)", groupby=["arm"])
        .transform_filter("datum.step == datum.last")
        .transform_flatten(["block", "value"])
        .mark_line(point=True)
        .encode(
            x=alt.X("block:O", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
            color=color_of_rank(),
            detail="arm:N",
            tooltip=["arm:N", "step:Q", "block:O", tip("value", ".4g")],
        )
        .properties(width="container", height=200)
    )


def tuning(key: str, kind: str, low: float, high: float) -> Chart:
    """Return the loss of each tried setting against a tuned key, whose range is ``kind``. Its data are
    ``trials``: records of arm, loss (null: diverged), settings, setting (as text), chosen and edges."""
    name = json.dumps(key)
    mark = (
        "!isValid(datum.loss) ? 'diverged' : !datum.chosen ? 'tried' : "
        f"indexof(datum.edges, {name}) < 0 ? 'chosen' : 'chosen, at the edge'"
    )
    x = alt.X("x:N", title=key, axis=alt.Axis(labelAngle=0))
    if kind.startswith(("log ", "linear ")):
        form, *limits = kind.split()
        axis = alt.Axis(format="~g", tickCount=6, labelOverlap="greedy")
        domain = [float(limit) for limit in limits]
        scale = alt.Scale.from_dict({"type": form, "domain": domain, "nice": False, "padding": 12})
        x = alt.X("x:Q", title=key, scale=scale, axis=axis)
    return (
        ranked("trials")
        .transform_calculate(
            x=f"datum.settings[{name}]",
            mark=mark,
            area=f"{json.dumps(SIZES)}[{mark}]",
            y=f"isValid(datum.loss) ? min(datum.loss, {high}) : {high}",
            front="(datum.rank >= 0) + datum.chosen",
        )
        .mark_point(filled=True, strokeWidth=1)
        .encode(
            x=x,
            y=alt.Y("y:Q", title="validation loss", scale=alt.Scale(domain=[low, high])),
            color=color_of_rank(),
            shape=alt.Shape("mark:N", scale=alt.Scale(domain=[*MARKS], range=[*MARKS.values()]),
                            legend=alt.Legend(title=None, orient="top", columns=2, symbolFillColor="#888")),
            size=alt.Size("area:Q", scale=None),
            opacity=alt.condition("datum.rank < 0", alt.value(0.25), alt.value(0.9)),
            stroke=alt.condition("datum.mark == 'chosen, at the edge'", alt.value("#e22"), alt.value(None)),
            order="front:Q",
            tooltip=["arm:N", "setting:N", tip("loss"), "mark:N"],
        )
        .properties(width="container", height=320)
    )  # fmt: skip


def against_number(table: Table, key: str) -> Chart:
    """Return the mean loss against a key whose values are numbers. A line joins the arms that differ only in
    this key."""
    records: Records = [
        {
            "arm": " ".join(word for word in short(row.title).split() if not word.startswith(f"{key}=")),
            "x": float(row.keys[key]),
            "loss": row.mean,
        }
        for row in table.rows
        if row.mean is not None
    ]
    values = [record["x"] for record in records]
    is_log = bool(values) and min(values) > 0 and max(values) >= 8 * min(values)
    kind = alt.Scale(type="log" if is_log else "linear", zero=False, nice=False, padding=12)
    low, high = fence([record["loss"] for record in records] or [0.0])
    chosen = alt.selection_point(fields=["arm"], bind="legend")
    return (
        alt.Chart(alt.Data(values=records))
        .mark_line(point=True, clip=True)
        .encode(
            x=alt.X("x:Q", title=key, scale=kind, axis=alt.Axis(values=sorted({*values}), format="~g")),
            y=alt.Y("loss:Q", title="validation loss", scale=alt.Scale(domain=padded(low, high))),
            color=alt.Color("arm:N", scale=alt.Scale(scheme="tableau20"),
                            legend=alt.Legend(title=None, orient="bottom", columns=2, labelLimit=0)),
            opacity=alt.condition(chosen, alt.value(1), alt.value(0.1)),
            tooltip=["arm:N", alt.Tooltip("x:Q", title=key), tip("loss")],
        )
        .add_params(chosen)
        .properties(width="container", height=320)
    )  # fmt: skip


def padded(low: float, high: float) -> list[float]:
    margin = 0.05 * (high - low) or 0.05
    return [low - margin, high + margin]


def grid(table: Table) -> Chart:
    """Return a map of mean losses by two keys. Dark is low. An outlier has the colour of the largest other
    loss. An arm that is the same model as another arm shows the other's loss."""
    a, b = grid_keys(table) or ("norm", "placement")
    cells = {(row.keys.get(a, ""), row.keys.get(b, "")): row.mean for row in table.rows}
    means = {row.title: row.mean for row in table.rows}
    for arm in table.study.arms if table.study else ():
        for title in arm.same_as:
            keys = by_key(title.split())
            cells[keys.get(a, ""), keys.get(b, "")] = means[arm.title]
    low, high = fence([loss for loss in cells.values() if loss is not None] or [0.0])

    def ordered(axis: int) -> list[str]:
        """Return the values of a key: numbers in ascending order, other values by their median loss."""
        found: dict[str, list[float]] = {}
        for each, loss in cells.items():
            found.setdefault(each[axis], []).append(np.inf if loss is None else loss)
        by_loss = sorted(found, key=lambda value: float(np.median(found[value])))
        return sorted(found, key=float) if are_numbers(by_loss) else by_loss

    records: Records = [
        {"name": name, "head": head, "loss": loss, "text": "diverged" if loss is None else f"{loss:.3f}",
         "ink": "currentColor" if loss is None else "#fff" if loss < (low + high) / 2 else "#000"}
        for (name, head), loss in cells.items()
    ]  # fmt: skip
    x = alt.X("head:N", title=b, sort=ordered(1), axis=alt.Axis(orient="top", labelAngle=-30, labelLimit=0))
    y = alt.Y("name:N", title=a, sort=ordered(0), axis=alt.Axis(labelLimit=0))
    scale = alt.Scale(scheme="viridis", domain=[low, high], clamp=True)
    legend = alt.Legend(orient="bottom", direction="horizontal", tickCount=4, gradientLength=200)
    color = alt.Color("loss:Q", title="validation loss", scale=scale, legend=legend)
    base = alt.Chart(alt.Data(values=records)).encode(x=x, y=y)
    return alt.layer(
        base.transform_filter("isValid(datum.loss)").mark_rect().encode(color=color),
        base.mark_text(fontSize=11, color=alt.expr("datum.ink")).encode(text="text:N"),
    ).properties(width=alt.Step(56), height=alt.Step(22))
