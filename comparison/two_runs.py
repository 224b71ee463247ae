"""Compare two runs: their settings, where their statistics first differ, and their last losses."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from comparison.groups import MISSING, as_text, is_compared
from comparison.load import Run

APART = 0.01  # the relative difference above which rounding cannot be the reason

HALVES = ("attn", "mlp", "")  # of a block, in the order of the forward; "": the whole block
SLOTS = [*"pre.in pre pre.out inside out.in out out.out branch post.in post post.out".split(), ""]


def shared_statistics(a: Run, b: Run) -> list[tuple[float, str, float, float]]:
    """Return the statistics that both runs have at the same step, in the order of their computation: step,
    metric, both values."""
    shared = []
    for metric in a.metrics.keys() & b.metrics.keys():
        if "/" not in metric or metric.startswith(("train/", "val/", "stats/", "leak.")):
            continue
        values_a, values_b = (dict(zip(*run.curve(metric), strict=True)) for run in (a, b))
        shared += [(step, metric, values_a[step], values_b[step]) for step in values_a.keys() & values_b]
    return sorted(shared, key=lambda each: (each[0], forward_order(each[1])))


def first_difference(shared: Sequence[tuple[float, str, float, float]], tolerance: float) -> str:
    """Return the first step, and the first site at that step, at which statistics differ by more than
    ``tolerance``, relative to the larger value. ``shared``: see ``shared_statistics``."""
    for step, metric, x, y in shared:
        if abs(x - y) > tolerance * max(abs(x), abs(y)):
            return f"from step {step:,.0f}, first {metric}: {x:.6g} and {y:.6g}"
    return "nowhere"


def forward_order(metric: str) -> tuple[bool, int, int, int, str]:
    """Return a key that sorts metrics in the order of the forward pass; gradients and weights come last."""
    kind, _, site = metric.partition("/")
    block, _, rest = site.partition(".")
    half, _, slot = rest.partition(".")
    is_late = kind.startswith(("grad.", "weight.", "update."))
    number = int(block) if block.isdigit() else -1 if site == "embed" else 10**6
    is_inside = kind.startswith(("attn.", "mlp."))  # a statistic of the branch's own tensors
    position = index(SLOTS, "inside" if is_inside else slot)
    return is_late, number, index(HALVES, half), position, metric


def index(words: Sequence[str], word: str) -> int:
    """Return the place of a word, the last one if it is not there: a site of another version."""
    return words.index(word) if word in words else len(words)


def render(a: Run, b: Run) -> RenderableType:
    table = Table("", Column(Text(a.name)), Column(Text(b.name)), box=box.SIMPLE_HEAD, pad_edge=False)
    for key in dict.fromkeys([*a.config, *b.config]):
        text_a, text_b = (as_text(run.config.get(key, MISSING)) for run in (a, b))
        if text_a != text_b:
            table.add_row(Text(key), Text(text_a), Text(text_b), style="" if is_compared(key) else "dim")
    parts: list[RenderableType] = [table] if table.row_count else [Text("the same settings")]
    if shared := shared_statistics(a, b):
        for phrase, tolerance in (("at all", 0.0), (f"by more than {APART:.0%}", APART)):
            parts.append(Text(f"where statistics differ {phrase}: {first_difference(shared, tolerance)}"))
    else:
        parts.append(Text("statistics: none at the same step of both"))
    x, y = (run.last("val/full_loss") for run in (a, b))
    if math.isfinite(y - x):
        how = f"differing by {y - x:+.4f}" if x != y else "the same to the last digit"
        parts.append(Text(f"val/full_loss: {x:.4f} and {y:.4f}, {how}"))
    for run in (a, b):
        if run.diverged:
            parts.append(Text(f"{run.name} diverged by step {run.status['step']}: {run.status['reason']}"))
        if run.causality != "causal":
            parts.append(Text(f"{run.name}: does it leak? {run.causality}", "yellow"))
    hint = "One run each: only more seeds can tell whether that is noise (python compare.py FOLDER)."
    if x != y:
        parts.append(Text(hint, "dim"))
    return Lines(*parts)
