"""Draw the statistics that runs logged: a column for each run, a row for each statistic, a line for each
block.

    python -m scripts.layers runs/A runs/B --out layers.svg
    python -m scripts.layers runs/A --metrics 'norm.gain/*.pre' 'act.kurtosis/*.mlp'

The x axis is the step, logarithmic because steps are dense at the start; each row has one y axis. Runs may
still be running. --out chooses SVG, PNG or PDF by its extension.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import filter as matching
from math import isfinite
from pathlib import Path

import altair as alt
import yaml

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from study.figures import FORMATS, save
from training.run_folder import read_rows

METRICS = (
    "act.rms/*.mlp",
    "act.ratio/*.mlp.branch",
    "grad.rms/*.mlp",
    "attn.entropy/*",
    "update.ratio/[0-9]*",
)
Curves = dict[str, list[tuple[int, float]]]  # metric -> (step, finite value)


def read_curves(folder: Path) -> Curves:
    """Return every metric of a run that is a number."""
    result: Curves = {}
    for row in read_rows(folder / "metrics.jsonl"):
        for name, value in row.items():
            if isinstance(value, float | int) and isfinite(value):
                result.setdefault(name, []).append((row["step"], value))
    return result


def block(metric: str) -> str:
    """Return the block of a metric, such as "03"; another word if the metric does not belong to a block."""
    return metric.partition("/")[2].partition(".")[0]


def titles(folders: Sequence[Path]) -> list[list[str]]:
    """Return norm and placement of each run, as the lines of a title; where two have the same, a second line
    has the folder's name. Raises OSError if a folder is not that of a run."""
    configs = [yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) for folder in folders]
    labels = [f"{config['norm']['_name_']} {config['placement']['_name_']}" for config in configs]
    counts = Counter(labels)
    return [
        [label, folder.resolve().name] if counts[label] > 1 else [label]
        for label, folder in zip(labels, folders, strict=True)
    ]


def figure(runs: Sequence[tuple[list[str], Curves]], patterns: Sequence[str]) -> alt.VConcatChart:
    """Return a figure with a row of panels for each pattern and a column for each run, title and curves."""
    names = {name for _, run in runs for pattern in patterns for name in matching(run, pattern)}
    blocks = sorted({block(name) for name in names if block(name).isdigit()}, key=int)
    rows = []
    for pattern in patterns:
        log = is_log([run for _, run in runs], pattern)
        panels = [panel(title, run, pattern, blocks, log) for title, run in runs]
        rows.append(alt.hconcat(*panels).resolve_scale(x="shared", y="shared"))
    # a reader's font may be wider than the one by which the figure is laid out
    return alt.vconcat(*rows, padding={"left": 24, "right": 24, "top": 5, "bottom": 5})


def is_log(runs: Iterable[Curves], pattern: str) -> bool:
    """Return True if the values of all runs are positive and span more than a factor of ten."""
    values = [value for run in runs for name in matching(run, pattern) for _, value in run[name]]
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)


def panel(title: list[str], run: Curves, pattern: str, blocks: list[str], logarithmic: bool) -> alt.Chart:
    """Return the panel of one pattern of one run."""
    metrics = sorted(matching(run, pattern))
    kind, _, site = pattern.partition("/")
    rows = [
        {"metric": metric, "block": block(metric), "step": step, "value": value}
        for metric in metrics
        for step, value in run[metric]
    ]
    # an axis of type symlog gives a format one unit for all numbers: 0k, 0k, 0.1k
    powers = [0, *(10**i for i in range(9))]
    axis = alt.Axis(values=powers, labelExpr="format(datum.value, '~s')", gridOpacity=0.4)
    x = alt.X("step:Q", scale=alt.Scale(type="symlog"), axis=axis)
    y = alt.Y(
        "value:Q",
        title=kind if set("*?[") & set(site) else pattern,
        scale=alt.Scale(type="log" if logarithmic else "linear", zero=False),
        axis=alt.Axis(format=".0e" if logarithmic else "~g", minExtent=40, tickCount=4, gridOpacity=0.4),
    )
    chart = alt.Chart(alt.InlineData(values=rows), title=alt.Title(title, fontSize=9, fontWeight="normal"))
    chart = chart.mark_line(strokeWidth=1).encode(x, y, detail="metric:N").properties(width=170, height=110)
    if not any(block(metric) in blocks for metric in metrics):
        return chart.encode(color=alt.value("black"))
    scheme = alt.SchemeParams(name="viridis", extent=[0, 0.9])  # without pale yellow
    return chart.encode(color=alt.Color("block:O", scale=alt.Scale(domain=blocks, scheme=scheme)))


def main() -> None:
    parser = programs.parser(__doc__, "scripts.layers")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, default=Path("layers.svg"), help="default: layers.svg")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="patterns, e.g. 'act.rms/*.mlp'")
    args = parser.parse_args()
    with one_line_errors():
        runs = [*zip(titles(args.runs), map(read_curves, args.runs), strict=True)]
        for pattern in args.metrics:
            if not any(matching(run, pattern) for _, run in runs):
                raise ConfigError(f"--metrics: no run has {pattern!r}; stats=all logs every statistic")
        if args.out.suffix not in FORMATS:
            raise ConfigError(f"--out: {args.out} should end in .svg, .png or .pdf")
        print("drawing", file=sys.stderr, flush=True)
        save(figure(runs, args.metrics), args.out)
        print(args.out)


if __name__ == "__main__":
    main()
