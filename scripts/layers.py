"""Draw statistics that runs logged: a column for each run, a row for each statistic, a line for each block.

    python -m scripts.layers runs/A runs/B --out layers.svg
    python -m scripts.layers runs/A --metrics 'norm.gain/*.pre' 'act.kurtosis/*.mlp'

The x axis is the step. It is logarithmic, because more of the first steps are logged. The panels of a row
share their y axis. The runs need not have ended.
"""

from collections.abc import Mapping, Sequence
from fnmatch import filter as matching
from math import isfinite
from pathlib import Path
from typing import Any

import altair as alt

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from scripts.show import check_format
from study.figures import save
from training.run_folder import read_rows

METRICS = "act.rms/*.mlp act.ratio/*.mlp.branch grad.rms/*.mlp attn.entropy/* update.ratio/[0-9]*".split()
POWERS = [0, *(10**i for i in range(9))]
# labelExpr, because ``format`` would give all numbers of this axis one unit: 0k, 0k, 0.1k
STEPS = alt.Axis(values=POWERS, labelExpr="format(datum.value, '~s')", gridOpacity=0.4)
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # title -> rows of metrics.jsonl


def figure(runs: Runs, patterns: Sequence[str]) -> alt.VConcatChart:
    """Return a figure with a row of panels for each pattern of metrics, one panel per run. Raises ConfigError
    if a pattern matches no number of any run."""
    rows = [panels(runs, pattern) for pattern in patterns]
    padding = {"left": 24, "right": 24, "top": 5, "bottom": 5}  # a reader's font may be wider than ours
    return alt.vconcat(*rows, padding=padding)


def panels(runs: Runs, pattern: str) -> alt.FacetChart:
    """Return the row of panels of one pattern. Its y axis is logarithmic if the values of all runs are
    positive and span more than a factor of ten."""
    points: list[dict[str, Any]] = [
        {"run": title, "metric": name, "block": block(name), "step": row["step"], "value": row[name]}
        for title, rows in runs.items()
        for row in rows
        for name in matching(row, pattern)
        if isinstance(row[name], float | int) and isfinite(row[name])
    ]
    if not points:
        raise ConfigError(f"--metrics: no run has {pattern!r}; stats=all logs every statistic")
    values = [point["value"] for point in points]
    blocks = sorted({point["block"] for point in points} - {None})
    is_log = min(values) > 0 and max(values) > 10 * min(values)
    points += [{"run": title, "step": 0} for title in runs]  # a run without the metric has an empty panel
    y = alt.Y(
        "value:Q",
        title=pattern.partition("/")[0] if set("*?[") & {*pattern} else pattern,
        scale=alt.Scale(type="log" if is_log else "linear", zero=False),
        axis=alt.Axis(format=".0e" if is_log else "~g", minExtent=40, tickCount=4, gridOpacity=0.4),
    )
    chart = alt.Chart(alt.InlineData(values=points), width=170, height=110).mark_line(strokeWidth=1)
    x = alt.X("step:Q", scale=alt.Scale(type="symlog"), axis=STEPS)
    scheme = alt.SchemeParams(name="viridis", extent=[0, 0.9])  # without pale yellow
    color = alt.Color("block:O", scale=alt.Scale(domain=blocks, scheme=scheme))
    chart = chart.encode(x, y, color=color if blocks else alt.value("black"), detail="metric:N")
    return chart.facet(alt.Column("run:N", title=None, sort=[*runs], header=alt.Header(labelFontSize=9)))


def block(metric: str) -> int | None:
    """Return the block of a metric, such as 3 of act.rms/03.mlp; None if it does not belong to a block."""
    site = metric.partition("/")[2].partition(".")[0]
    return int(site) if site.isdigit() else None


def main() -> None:
    parser = programs.parser(__doc__, "scripts.layers")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument(
        "--out", type=Path, default="layers.svg", help=".svg, .png or .pdf; default: layers.svg"
    )
    parser.add_argument("--metrics", nargs="+", default=METRICS, help="patterns, e.g. 'act.rms/*.mlp'")
    args = parser.parse_args()
    with one_line_errors():
        check_format(args.out)
        runs = {run.resolve().name: read_rows(run / "metrics.jsonl") for run in args.runs}
        save(figure(runs, args.metrics), args.out)
        print(args.out)


if __name__ == "__main__":
    main()
