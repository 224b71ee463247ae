"""The figure of bench/scaling.py, drawn as comparison/ draws its own. Nothing to run here."""

from pathlib import Path
from typing import Any

from bench.measure import BenchError
from bench.report import Bench
from comparison.figures import COLORS, Spec, filled, spec, svg

TITLES = {"depth": "layers", "width": "channels", "context": "context, tokens", "batch": "rows of a batch"}
PROGRAMS = ("ours", "nanoGPT")


def rows(bench: Bench) -> list[dict[str, Any]]:
    """Of each point the median of its rounds and their range."""
    found = []
    for point in bench.found.get("points", []):
        values = bench.raw[point["part"]]["tokens_per_s"]
        middle = sorted(values)[len(values) // 2]
        found.append(point | {"rate": middle, "low": min(values), "high": max(values)})
    return found


def panel(axis: str) -> Spec:
    """Tokens a second against one of the axes, both logarithmic."""
    x = {"field": "value", "type": "quantitative", "title": TITLES[axis], "scale": {"type": "log"}}
    x |= {"axis": {"values": [2**i for i in range(12)]}}
    y = {"field": "rate", "type": "quantitative", "title": "tokens/s", "scale": {"type": "log"}}
    color = {"field": "program", "title": None, "scale": {"domain": PROGRAMS, "range": COLORS[:2]}}
    line = {"mark": {"type": "line", "point": True, "strokeWidth": 1.6}, "encoding": {"x": x, "y": y}}
    ends = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
    return {
        "width": 200,
        "height": 160,
        "transform": [{"filter": {"field": "axis", "equal": axis}}],
        "encoding": {"color": color},
        "layer": [line, {"mark": {"type": "rule"}, "encoding": ends}],
    }


def memory(points: list[dict[str, Any]]) -> Spec:
    """Memory against the step of a long run."""
    kinds = (("resident_bytes", "all that is resident"), ("own_bytes", "its own"))
    values = [
        {"step": point["step"], "megabytes": point[key] / 1e6, "of": title}
        for point in points
        for key, title in kinds
        if point[key] is not None
    ]
    return {
        "width": 460,
        "height": 120,
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.6},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "step"},
            "y": {
                "field": "megabytes",
                "type": "quantitative",
                "title": "memory, MB",
                "scale": {"zero": True},
            },
            "color": {"field": "of", "title": None, "scale": {"range": COLORS[2:4]}},
        },
    }


def draw(bench: Bench, file: Path) -> None:
    """Write the figure. Raises BenchError where it cannot be."""
    axes = list(dict.fromkeys(point["axis"] for point in bench.found.get("points", [])))
    panels: list[Spec] = [{"concat": [panel(axis) for axis in axes], "columns": 2}] if axes else []
    if points := bench.found.get("memory"):
        panels.append(memory(points))
    if not panels:
        return
    drawn = filled(spec(vconcat=panels, resolve={"scale": {"color": "independent"}}), rows(bench))
    try:
        file.write_text(svg(drawn), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{file}: {error.strerror}; name another place with --out") from None
