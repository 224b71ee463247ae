"""Draw what runs logged layer by layer: a column for each run, a row for each statistic, a line for each
block.

    python -m scripts.layers runs/A runs/B --out layers.svg
    python -m scripts.layers runs/A --metrics 'norm.gain/*.pre' 'act.kurtosis/*.mlp'

The x axis is the step, logarithmic as the cadence is dense at the start; each row has one y axis. Also of a
run that goes on. SVG, PNG or PDF, by the ending of --out.
"""

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from comparison.figures import FORMATS, Spec, save, spec
from comparison.load import read_metrics

METRICS = ("act.rms/*.mlp", "act.ratio/*.mlp.branch", "grad.rms/*.mlp", "attn.entropy/*", "update.ratio/??")
Curves = dict[str, list[tuple[int, float]]]  # metric -> its finite values by step


def curves(folder: Path) -> Curves:
    """Every metric of a run. Raises OSError where there is no metrics.jsonl."""
    axes, metrics, _ = read_metrics(folder / "metrics.jsonl")
    found: Curves = {}
    for name, (rows, values) in metrics.items():
        finite = np.isfinite(values)
        found[name] = list(zip(map(int, axes["step"][rows[finite]]), values[finite].tolist(), strict=True))
    return found


def block(name: str) -> str:
    """The block that a metric is of, as 03; of no block it is another word."""
    return name.partition("/")[2].partition(".")[0]


def titles(folders: Sequence[Path]) -> list[str]:
    """The folders' names, or where two share one, their paths."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def picture(runs: dict[str, Curves], metrics: Sequence[str]) -> Spec:
    """Of the metrics that fit each of the patterns ``metrics``, of each run."""
    names = {name for found in runs.values() for name in found if any(fnmatchcase(name, p) for p in metrics)}
    blocks = sorted({block(name) for name in names if block(name).isdigit()})
    return spec(
        vconcat=[
            {"hconcat": [panel(title, found, pattern, blocks) for title, found in runs.items()]}
            | {"resolve": {"scale": {"y": "shared", "x": "shared"}}}
            for pattern in metrics
        ],
        resolve={"scale": {"color": "shared"}},
    )


def panel(title: str, found: Curves, pattern: str, blocks: list[str]) -> Spec:
    """One pattern of one run. The first has its values on a logarithmic axis, and so all of its row, where
    they span more than a factor of ten."""
    chosen = [name for name in sorted(found) if fnmatchcase(name, pattern)]
    kind, _, site = pattern.partition("/")
    name = kind if set("*?[") & set(site) else pattern
    color = {"field": "block", "type": "nominal", "scale": {"domain": blocks, "range": colors(len(blocks))}}
    heights = [height for name in chosen for _, height in found[name]]
    wide = bool(heights) and min(heights) > 0 and max(heights) > 10 * min(heights)
    values = [
        {"metric": metric, "block": block(metric), "step": step, "value": value}
        for metric in chosen
        for step, value in found[metric]
    ]
    return {
        "title": {"text": title, "fontSize": 9, "fontWeight": "normal", "color": "currentColor"},
        "width": 170,
        "height": 110,
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1},
        "encoding": {
            "x": {
                "field": "step",
                "type": "quantitative",
                "title": "step",
                "scale": {"type": "symlog"},
                "axis": {"values": [0, *(10**i for i in range(9))], "format": "~s"},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": name,
                "scale": {"type": "log" if wide else "linear", "zero": False},
                "axis": {"format": ".0e" if wide else "~g", "minExtent": 40, "tickCount": 4},
            },
            "color": color
            if any(block(metric) in blocks for metric in chosen)
            else {"value": "currentColor"},
            "detail": {"field": "metric"},
        },
    }


def colors(count: int) -> list[str]:
    """From the first block, dark, to the last, bright: of viridis, by its anchors."""
    anchors = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (220, 215, 40)])
    at = np.linspace(0, len(anchors) - 1, max(count, 2))
    mixed = np.stack([np.interp(at, range(len(anchors)), anchors[:, i]) for i in range(3)], axis=1)
    return ["#" + "".join(f"{round(part):02x}" for part in color) for color in mixed[:count]]


def draw(runs: dict[str, Curves], metrics: Sequence[str], out: Path) -> None:
    """Draw the picture into the file ``out``."""
    save(picture(runs, metrics), out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.layers", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, default=Path("layers.svg"), help="layers.svg; .svg, .png or .pdf")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="patterns, as 'act.rms/*.mlp'")
    asked = parser.parse_args()
    try:
        found = dict(zip(titles(asked.runs), map(curves, asked.runs), strict=True))
        for pattern in asked.metrics:
            if not any(fnmatchcase(name, pattern) for run in found.values() for name in run):
                raise ValueError(f"--metrics: no run has {pattern!r}; stats=all logs everything there is")
        if asked.out.suffix not in FORMATS:
            raise ValueError(f"--out: {asked.out} should end in .svg, .png or .pdf")
        draw(found, asked.metrics, asked.out)
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}; check the path")
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(asked.out)


if __name__ == "__main__":
    main()
