"""Draw the statistics that runs logged: a column for each run, a row for each statistic, a line for each
block.

    python -m scripts.layers runs/A runs/B --out layers.svg
    python -m scripts.layers runs/A --metrics 'norm.gain/*.pre' 'act.kurtosis/*.mlp'

The x axis is the step, logarithmic because steps are dense at the start; each row has one y axis. Runs may
still be running. --out chooses SVG, PNG or PDF by its extension.
"""

import sys
from collections.abc import Iterable, Sequence
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

import numpy as np

from cli import programs
from cli.errors import one_line_errors
from comparison.drawing.convert import FORMATS, save
from comparison.drawing.specs import Spec, number, spec
from comparison.load import read_metrics
from data.errors import ConfigError

METRICS = (
    "act.rms/*.mlp",
    "act.ratio/*.mlp.branch",
    "grad.rms/*.mlp",
    "attn.entropy/*",
    "update.ratio/[0-9]*",
)
Curves = dict[str, list[tuple[int, float]]]  # metric -> (step, finite value)


def read_curves(folder: Path) -> Curves:
    """Return every metric of a run. Raises ConfigError if a metric is not a number, and OSError if the run
    has no metrics.jsonl."""
    try:
        axes, metrics, _ = read_metrics(folder / "metrics.jsonl")
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}; leave this run out") from None
    result: Curves = {}
    for name, (rows, values) in metrics.items():
        finite = np.isfinite(values)
        steps = map(int, axes["step"][rows[finite]])
        result[name] = list(zip(steps, values[finite].tolist(), strict=True))
    return result


def block(metric: str) -> str:
    """Return the block of a metric, such as "03"; another word if the metric does not belong to a block."""
    return metric.partition("/")[2].partition(".")[0]


def titles(folders: Sequence[Path]) -> list[str]:
    """Return the names of the folders, or their paths if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def figure_spec(runs: dict[str, Curves], patterns: Sequence[str]) -> Spec:
    """Return a figure with a row of panels for each pattern and a column for each run."""
    names = {name for run in runs.values() for pattern in patterns for name in matching(run, pattern)}
    blocks = sorted({block(name) for name in names if block(name).isdigit()}, key=int)
    resolve = {"scale": {"y": "shared", "x": "shared"}}
    rows = [
        [panel(title, run, pattern, blocks, is_log(runs.values(), pattern)) for title, run in runs.items()]
        for pattern in patterns
    ]
    parts = [{"hconcat": panels, "resolve": resolve} for panels in rows]
    return spec(vconcat=parts, resolve={"scale": {"color": "shared"}})


def is_log(runs: Iterable[Curves], pattern: str) -> bool:
    """Return True if the values of all runs are positive and span more than a factor of ten."""
    values = [value for run in runs for name in matching(run, pattern) for _, value in run[name]]
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)


def panel(title: str, run: Curves, pattern: str, blocks: list[str], logarithmic: bool) -> Spec:
    """Return the panel of one pattern of one run."""
    metrics = sorted(matching(run, pattern))
    kind, _, site = pattern.partition("/")
    rows: list[dict[str, Any]] = [
        {"metric": metric, "block": block(metric), "step": step, "value": value}
        for metric in metrics
        for step, value in run[metric]
    ]
    powers = [0, *(10**i for i in range(9))]
    x = number("step", "step", scale={"type": "symlog"}, axis={"values": powers, "format": "~s"})
    y = number(
        "value",
        kind if set("*?[") & set(site) else pattern,
        scale={"type": "log" if logarithmic else "linear", "zero": False},
        axis={"format": ".0e" if logarithmic else "~g", "minExtent": 40, "tickCount": 4},
    )
    color: Spec = {"value": "currentColor"}
    if any(block(metric) in blocks for metric in metrics):
        scale = {"domain": blocks, "scheme": {"name": "viridis", "extent": [0, 0.9]}}  # without pale yellow
        color = {"field": "block", "type": "ordinal", "scale": scale}
    return {
        "title": {"text": title, "fontSize": 9, "fontWeight": "normal", "color": "currentColor"},
        "width": 170,
        "height": 110,
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1},
        "encoding": {"x": x, "y": y, "color": color, "detail": {"field": "metric"}},
    }


def main() -> None:
    parser = programs.parser(__doc__, "scripts.layers")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, default=Path("layers.svg"), help="default: layers.svg")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="patterns, e.g. 'act.rms/*.mlp'")
    args = parser.parse_args()
    with one_line_errors():
        runs = dict(zip(titles(args.runs), map(read_curves, args.runs), strict=True))
        for pattern in args.metrics:
            if not any(matching(run, pattern) for run in runs.values()):
                raise ConfigError(f"--metrics: no run has {pattern!r}; stats=all logs every statistic")
        if args.out.suffix not in FORMATS:
            raise ConfigError(f"--out: {args.out} should end in .svg, .png or .pdf")
        print("drawing", file=sys.stderr, flush=True)
        save(figure_spec(runs, args.metrics), args.out)
        print(args.out)


if __name__ == "__main__":
    main()
