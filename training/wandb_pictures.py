"""Pictures of a run's statistics for wandb: charts with a line for each block, and maps of steps × blocks."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from probe.metric_names import STATISTICS

MOST_STEPS = 200  # in a picture: wandb draws 10,000 points
Lines = dict[str, dict[int, float]]  # block -> step -> value


def pictures(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the pictures of the rows of metrics.jsonl, such as ``within/act.rms mlp`` and its ``… map``."""
    import wandb

    found: dict[str, Any] = {}
    for name, lines in by_statistic(rows).items():
        steps = sorted({step for line in lines.values() for step in line})
        steps = steps[:: math.ceil(len(steps) / MOST_STEPS)]
        xs = [[step for step in steps if step in line] for line in lines.values()]
        ys = [[line[step] for step in x] for x, line in zip(xs, lines.values(), strict=True)]
        found[f"within/{name}"] = wandb.plot.line_series(xs, ys, [*lines], name, "step", split_table=True)
        found[f"within/{name} map"] = wandb.Html(heat_map(lines, steps), inject=False)
    return found


def by_statistic(rows: Iterable[dict[str, Any]]) -> dict[str, Lines]:
    """Return the finite values of each statistic and branch, such as ``act.rms mlp``, in the order of depth.
    The sites outside the blocks, ``embed`` and ``final``, are in the pictures of all branches."""
    found: dict[str, dict[str, Lines]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in rows:
        for name, value in row.items():
            statistic, _, site = name.partition("/")
            if statistic in STATISTICS and math.isfinite(float(value)):
                block, _, branch = site.partition(".")
                found[statistic][branch][block][row["step"]] = float(value)
    named: dict[str, Lines] = {}
    for statistic, branches in found.items():
        outside = branches.pop("", {}) if len(branches) > 1 else {}
        for branch, lines in branches.items():
            ordered = sorted(
                (lines | outside).items(),
                key=lambda line: (line[0] == "final", line[0] != "embed", len(line[0]), line[0]),
            )
            named[f"{statistic} {branch}".strip()] = dict(ordered)
    return named


def heat_map(lines: Lines, steps: list[int]) -> str:
    """Return an HTML table: steps from left to right, depth from bottom to top; a large value is dark. The
    scale is logarithmic if all values are positive and differ by more than a factor of ten."""
    values = [line[step] for line in lines.values() for step in steps if step in line]
    low, high = min(values), max(values)
    scale: Callable[[float], float] = math.log if low > 0 and high > 10 * low else float
    span = scale(high) - scale(low) or 1

    def cell(block: str, step: int) -> str:
        if step not in lines[block]:
            return "<td>"
        value = lines[block][step]
        light = 95 - 75 * (scale(value) - scale(low)) / span
        return f'<td style="background:hsl(215 80% {light:.0f}%)" title="{block}, step {step}: {value:.4g}">'

    body = "".join(f"<tr><th>{b}{''.join(cell(b, step) for step in steps)}" for b in reversed(lines))
    kind = ", logarithmic" if scale is math.log else ""
    legend = f"step {steps[0]} to {steps[-1]}; {low:.3g} (light) to {high:.3g} (dark){kind}"
    style = "font:12px sans-serif;width:100%;height:90vh;border-collapse:collapse"
    return f'<table style="{style}"><caption style="caption-side:bottom">{legend}</caption>{body}</table>'
