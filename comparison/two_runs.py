"""Two runs side by side: in what they were told to differ, where they part, how they end."""

import math
from dataclasses import dataclass

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from comparison.groups import MISSING, shown, watching
from comparison.load import Run

APART = 0.01  # relative difference from which two values are said to be apart; below may be rounding


@dataclass(frozen=True)
class Parting:
    """The first step, and there the first site of the network, at which a metric of two runs differs."""

    step: int
    metric: str
    values: tuple[float, float]


def differing(a: Run, b: Run) -> dict[str, tuple[str, str]]:
    """Each key in which two runs differ, those among them that only watch, too."""
    keys = dict.fromkeys([*a.config, *b.config])
    pairs = {key: tuple(shown(run.config.get(key, MISSING)) for run in (a, b)) for key in keys}
    return {key: (pair[0], pair[1]) for key, pair in pairs.items() if pair[0] != pair[1]}


def parting(a: Run, b: Run, tolerance: float) -> Parting | None:
    """Where the statistics of two runs part by more than ``tolerance``, relative to the larger. None where
    they do not, as far as both have the same statistics at the same steps."""
    found: list[tuple[int, tuple[int, int, int, str], Parting]] = []
    for metric in a.metrics.keys() & b.metrics.keys():
        if "/" not in metric or metric.startswith(("train/", "val/", "stats/", "leak.")):
            continue
        values = [dict(zip(*run.curve(metric), strict=True)) for run in (a, b)]
        for step in sorted(values[0].keys() & values[1].keys()):
            x, y = values[0][step], values[1][step]
            if abs(x - y) > tolerance * max(abs(x), abs(y)):
                found.append((int(step), place(metric), Parting(int(step), metric, (x, y))))
                break
    return min(found, key=lambda item: item[:2])[2] if found else None


def place(metric: str) -> tuple[int, int, int, str]:
    """Sorts metrics by where the forward pass comes by; gradients and weights after all activations."""
    kind, _, site = metric.partition("/")
    block, _, rest = site.partition(".")
    late = kind.startswith(("grad.", "weight.", "update."))
    number = int(block) if block.isdigit() else -1 if site == "embed" else 10**6
    branch = 2 * rest.startswith("mlp") + ("branch" not in rest and ".pre" not in rest)
    return int(late), number, branch, metric


def in_terminal(a: Run, b: Run) -> RenderableType:
    table = Table("", Column(Text(a.name)), Column(Text(b.name)), box=box.SIMPLE_HEAD, pad_edge=False)
    for key, (x, y) in differing(a, b).items():
        table.add_row(Text(key), Text(x), Text(y), style="dim" if watching(key) else "")
    parts: list[RenderableType] = [table]
    for words, tolerance in (("differ at all", 0.0), (f"differ by more than {APART:.0%}", APART)):
        found = parting(a, b, tolerance)
        parts.append(Text(f"statistics {words}: {where(found) if found else 'nowhere'}"))
    finals = [run.last("val/full_loss") for run in (a, b)]
    if all(map(math.isfinite, finals)):
        words = (
            f"val/full_loss: {finals[0]:.4f} and {finals[1]:.4f}, differing by {finals[1] - finals[0]:+.4f}"
        )
        parts.append(Text(words))
    for run in (a, b):
        if run.diverged:
            parts.append(Text(f"{run.name} diverged by step {run.status['step']}: {run.status['reason']}"))
    parts.append(
        Text("One run each: whether that is noise, more seeds tell (python compare.py FOLDER).", "dim")
    )
    return Lines(*parts)


def where(found: Parting) -> str:
    return f"from step {found.step:,}, first {found.metric}: {found.values[0]:.6g} and {found.values[1]:.6g}"
