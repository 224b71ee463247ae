"""Compare two runs: their settings, where their statistics first differ, and their last losses."""

import math

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


def first_difference(a: Run, b: Run, tolerance: float) -> str:
    """Return the first step, and the first site at that step, at which statistics of two runs differ by more
    than ``tolerance``, relative to the larger value."""
    differences = []
    for metric in a.metrics.keys() & b.metrics.keys():
        if "/" not in metric or metric.startswith(("train/", "val/", "stats/", "leak.")):
            continue
        values_a, values_b = (dict(zip(*run.curve(metric), strict=True)) for run in (a, b))
        for step in sorted(values_a.keys() & values_b.keys()):
            x, y = values_a[step], values_b[step]
            if abs(x - y) > tolerance * max(abs(x), abs(y)):
                differences.append((step, forward_order(metric), f"{metric}: {x:.6g} and {y:.6g}"))
                break
    if not differences:
        return "nowhere"
    step, _, values = min(differences)
    return f"from step {step:,.0f}, first {values}"


def forward_order(metric: str) -> tuple[bool, int, int, int, str]:
    """Return a key that sorts metrics in the order of the forward pass; gradients and weights come last."""
    kind, _, site = metric.partition("/")
    block, _, rest = site.partition(".")
    half, _, slot = rest.partition(".")
    is_late = kind.startswith(("grad.", "weight.", "update."))
    number = int(block) if block.isdigit() else -1 if site == "embed" else 10**6
    is_inside = kind.startswith(("attn.", "mlp."))  # a statistic of the branch's own tensors
    position = SLOTS.index("inside" if is_inside else slot)
    return is_late, number, HALVES.index(half), position, metric


def render(a: Run, b: Run) -> RenderableType:
    table = Table("", Column(Text(a.name)), Column(Text(b.name)), box=box.SIMPLE_HEAD, pad_edge=False)
    for key in dict.fromkeys([*a.config, *b.config]):
        text_a, text_b = (as_text(run.config.get(key, MISSING)) for run in (a, b))
        if text_a != text_b:
            table.add_row(Text(key), Text(text_a), Text(text_b), style="" if is_compared(key) else "dim")
    parts: list[RenderableType] = [table] if table.row_count else [Text("the same settings")]
    for phrase, tolerance in (("differ at all", 0.0), (f"differ by more than {APART:.0%}", APART)):
        parts.append(Text(f"statistics {phrase}: {first_difference(a, b, tolerance)}"))
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
