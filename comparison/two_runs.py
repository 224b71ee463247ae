"""Two runs side by side: their settings, where their statistics part, how they end."""

import math
from dataclasses import dataclass

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from comparison.groups import MISSING, as_text, is_watching
from comparison.load import Run

APART = 0.01  # relative difference above which values are reported as apart; below, it may be rounding


@dataclass(frozen=True)
class Parting:
    """The first step, and the first site of the network at that step, at which a metric of two runs
    differs."""

    step: int
    metric: str
    values: tuple[float, float]

    def __str__(self) -> str:
        return f"from step {self.step:,}, first {self.metric}: {self.values[0]:.6g} and {self.values[1]:.6g}"


def parting(a: Run, b: Run, tolerance: float) -> Parting | None:
    """Return where the statistics of two runs first differ by more than ``tolerance``, relative to the larger
    value; None if they do not at any step that both have logged."""
    partings = []
    for metric in a.metrics.keys() & b.metrics.keys():
        if "/" not in metric or metric.startswith(("train/", "val/", "stats/", "leak.")):
            continue
        of_a, of_b = (dict(zip(*run.curve(metric), strict=True)) for run in (a, b))
        for step in sorted(of_a.keys() & of_b.keys()):
            x, y = of_a[step], of_b[step]
            if abs(x - y) > tolerance * max(abs(x), abs(y)):
                partings.append(Parting(int(step), metric, (x, y)))
                break
    return min(partings, key=lambda parting: (parting.step, place(parting.metric)), default=None)


def place(metric: str) -> tuple[int, int, int, str]:
    """Return a key that sorts metrics in the order of the forward pass; gradients and weights come last."""
    kind, _, site = metric.partition("/")
    block, _, rest = site.partition(".")
    late = kind.startswith(("grad.", "weight.", "update."))
    number = int(block) if block.isdigit() else -1 if site == "embed" else 10**6
    branch = 2 * rest.startswith("mlp") + ("branch" not in rest and ".pre" not in rest)
    return int(late), number, branch, metric


def render(a: Run, b: Run) -> RenderableType:
    table = Table("", Column(Text(a.name)), Column(Text(b.name)), box=box.SIMPLE_HEAD, pad_edge=False)
    for key in dict.fromkeys([*a.config, *b.config]):
        x, y = (as_text(run.config.get(key, MISSING)) for run in (a, b))
        if x != y:
            table.add_row(Text(key), Text(x), Text(y), style="dim" if is_watching(key) else "")
    parts: list[RenderableType] = [table]
    for words, tolerance in (("differ at all", 0.0), (f"differ by more than {APART:.0%}", APART)):
        parts.append(Text(f"statistics {words}: {parting(a, b, tolerance) or 'nowhere'}"))
    first, second = (run.last("val/full_loss") for run in (a, b))
    if math.isfinite(second - first):
        words = f"{first:.4f} and {second:.4f}, differing by {second - first:+.4f}"
        parts.append(Text(f"val/full_loss: {words}"))
    for run in (a, b):
        if run.diverged:
            parts.append(Text(f"{run.name} diverged by step {run.status['step']}: {run.status['reason']}"))
    hint = "One run each: only more seeds can tell whether that is noise (python compare.py FOLDER)."
    parts.append(Text(hint, "dim"))
    return Lines(*parts)
