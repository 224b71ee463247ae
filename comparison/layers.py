"""Draw what runs logged layer by layer: a column for each run, a row for each statistic, a line for each
block.

    python -m comparison.layers runs/A runs/B --out layers.svg
    python -m comparison.layers runs/A --metrics 'norm.gain/*.pre' 'act.kurtosis/*.mlp'

The x axis is the step, logarithmic as the cadence is dense at the start; each row has one y axis. SVG, PNG or
PDF, by the ending of --out.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

METRICS = ("act.rms/*.mlp", "act.ratio/*.mlp.branch", "grad.rms/*.mlp", "attn.entropy/*", "update.ratio/??")
Curves = dict[str, list[tuple[int, float]]]  # metric -> its finite values by step


def curves(folder: Path) -> Curves:
    """Every scalar metric of a run, also of one that goes on. Raises OSError where there is no
    metrics.jsonl."""
    found: Curves = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # the last line may be half written
            row = json.loads(line)
            for name, value in row.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    found.setdefault(name, []).append((row["step"], value))
    return found


def block(name: str) -> str:
    """The block that a metric is of, as 03; of no block it is another word."""
    return name.partition("/")[2].partition(".")[0]


def titles(folders: Sequence[Path]) -> list[str]:
    """The folders' names, or where two share one, their paths."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def draw(runs: dict[str, Curves], metrics: Sequence[str], out: Path) -> None:
    """Draw the metrics that fit each of the patterns ``metrics``, of each run, into the file ``out``."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "layers",
    }  # the same picture, the same file
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, axes = pyplot.subplots(
        *(len(metrics), len(runs)),
        figsize=(1.2 + 2.4 * len(runs), 0.6 + 1.6 * len(metrics)),
        squeeze=False,
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    names = {name for found in runs.values() for name in found if any(fnmatchcase(name, p) for p in metrics)}
    blocks = sorted({block(name) for name in names if block(name).isdigit()})
    bright = [0.9 * i / max(1, len(blocks) - 1) for i in range(len(blocks))]
    colors = dict(zip(blocks, map(matplotlib.colormaps["viridis"], bright), strict=True))
    for row, pattern in zip(axes, metrics, strict=True):
        drawn: list[float] = []
        for panel, (title, found) in zip(row, runs.items(), strict=True):
            for name in sorted(name for name in found if fnmatchcase(name, pattern)):
                steps, values = zip(*found[name], strict=True)
                panel.plot(steps, values, color=colors.get(block(name), "black"), linewidth=1)
                drawn += values
            panel.grid(alpha=0.3)
            if pattern == metrics[0]:
                panel.set_title(title, fontsize=7)
            if pattern == metrics[-1]:
                panel.set_xlabel("step", fontsize=8)
            panel.tick_params(labelsize=7)
            panel.set_xscale("symlog", linthresh=1)
            panel.set_xlim(left=0)
        kind, _, site = pattern.partition("/")
        row[0].set_ylabel(kind if set("*?[") & set(site) else pattern, fontsize=8)
        if drawn and min(drawn) > 0 and max(drawn) > 10 * min(drawn):
            row[0].set_yscale("log")
    lines = [Line2D([], [], color=color) for color in colors.values()]
    figure.legend(lines, blocks, title="block", loc="outside right upper", fontsize=7, title_fontsize=8)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comparison.layers", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, default=Path("layers.svg"), help="layers.svg; .svg, .png or .pdf")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="patterns, as 'act.rms/*.mlp'")
    asked = parser.parse_args()
    try:
        found = dict(zip(titles(asked.runs), map(curves, asked.runs), strict=True))
        for pattern in asked.metrics:
            if not any(fnmatchcase(name, pattern) for run in found.values() for name in run):
                raise ValueError(f"--metrics: no run has {pattern!r}; stats=all logs everything there is")
        if asked.out.suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(f"--out: {asked.out} should end in .svg, .png or .pdf")
        draw(found, asked.metrics, asked.out)
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}; check the path")
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(asked.out)


if __name__ == "__main__":
    main()
