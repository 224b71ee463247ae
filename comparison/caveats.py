"""What must be said beside any comparison of models: how their rates were chosen, what they had to learn
from, what else differs between them, what they cost."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from comparison import groups as grouping
from comparison.groups import Group, Keys, shown, title
from comparison.load import Run
from comparison.rates import Family


def rates(found: Sequence[Family], chosen_elsewhere: bool) -> str:
    """How the learning rates were chosen, which decides what the table can mean."""
    counts = {len(family.rates) for family in found}
    used = sorted({rate for family in found for rate in family.rates})
    tried = grouping.listed(f"{rate:g}" for rate in used)
    if chosen_elsewhere:
        return "Each at its own best learning rate, chosen by other runs on other seeds."
    if max(counts, default=1) == 1:
        if len(used) > 1:
            return f"Confounded: each group has one learning rate, and they differ ({tried})."
        return (
            f"One learning rate for all, {used[0]:g}: each group may have another best one, and at these the "
            "order may be another (confounded)."
        )
    said = (
        f"Each at its own best learning rate of {tried}, by the mean over seeds. The runs that are compared "
        "chose it, for which the verdicts pay (Bonferroni)."
    )
    alone = grouping.listed(title(family.keys) for family in found if len(family.rates) == 1)
    return said + f" At one rate only, and so confounded: {alone}." * (1 in counts)


def regime(runs: Sequence[Run]) -> str:
    """What the models had to learn from, without which no comparison of them means much."""
    words = []
    for what, of in (
        ("parameters", lambda run: run.environment.get("parameters", 0)),
        ("unique training tokens", lambda run: run.environment["data"].get("train_tokens", 0)),
        ("tokens trained on", grouping.trained_tokens),
    ):
        low, high = min(map(of, runs)), max(map(of, runs))
        words.append(f"{low:,} {what}" if low == high else f"{low:,} to {high:,} {what}")
    epochs = [grouping.trained_tokens(r) / max(1, r.environment["data"].get("train_tokens", 0)) for r in runs]
    gaps = [gap for run in runs if not run.diverged and math.isfinite(gap := train_val_gap(run))]
    words.append(
        f"{min(epochs):.2g} epochs"
        if min(epochs) == max(epochs)
        else f"{min(epochs):.2g} to {max(epochs):.2g} epochs"
    )
    if gaps:
        words.append(f"validation − training loss {min(gaps):+.3f} to {max(gaps):+.3f}")
    return "Data regime: " + "; ".join(words) + "."


def couplings(runs: Sequence[Run]) -> list[str]:
    """What goes with a norm or placement and was settled for it, as a last norm or a scale. A sentence, or
    none."""
    decide = [
        key
        for key in ("norm", "placement", "model.n_layer", "model.n_embd", "model.init")
        if key in runs[0].config
    ]
    decide = [key for key in decide if len({run.config.get(key) for run in runs}) > 1]
    wheres: dict[str, dict[str, dict[str, None]]] = {}  # key -> value -> what decides it, in order
    for run in runs:
        for key, value in run.environment.get("settled", {}).items():
            where = title({part: run.config.get(part) for part in decide})
            wheres.setdefault(key, {}).setdefault(shown(value), {})[where] = None
    said = []
    for key, values in wheres.items():
        everywhere = all(key in run.environment.get("settled", {}) for run in runs)
        usual = max(values, key=lambda value: len(values[value])) if everywhere else None
        words = [f"{value} for {grouping.listed(where)}" for value, where in values.items() if value != usual]
        words += [f"{'else ' * bool(words)}{usual}"] if usual is not None else []
        said.append(f"{key}={', '.join(words)}")
    return [f"Settled by norm and placement: {'; '.join(said)}."] if said else []


def train_val_gap(run: Run) -> float:
    """val/full_loss minus the mean training loss of the last tenth of the steps; NaN where there is none."""
    steps, losses = run.curve("train/loss")
    late = losses[steps >= 0.9 * run.config["train.steps"]]
    return run.last("val/full_loss") - float(late.mean()) if len(late) else math.nan


def of_runs(runs: Sequence[Run]) -> list[str]:
    """What may explain a difference other than what is compared: other code, versions, machines."""
    found = []
    for what, of in (
        ("torch", lambda e: e["packages"]["torch"]),
        ("processor or GPU", lambda e: (e["processor"], e["device"].partition(":")[0])),
        ("precision", lambda e: e["precision"]),
        ("threads", lambda e: e["threads"]),
        ("compile", lambda e: e["compile"]),
    ):
        values = {repr(of(run.environment)) for run in runs}
        if len(values) > 1:
            found.append(f"{what} differ between runs: {grouping.listed(sorted(values))}")
    codes = [run.environment.get("code", {}) for run in runs]
    files = sorted({file for code in codes for file in code})
    changed = [file for file in files if len({code.get(file) for code in codes}) > 1]
    if changed:
        found.append(f"the project's code differs between runs: {grouping.listed(changed)}")
    return found


def cost(group: Group) -> dict[str, Any]:
    """tokens/s: median over runs of each one's median; memory: the most; parameters."""
    speeds = [float(np.median(v[1])) for run in group.runs if (v := run.metrics.get("train/tokens_per_s"))]
    memory = [m for run in group.runs if (m := run.status.get("peak_memory"))]
    gaps = [gap for run in group.runs if not run.diverged and math.isfinite(gap := train_val_gap(run))]
    return {
        "tokens/s": float(np.median(speeds)) if speeds else math.nan,
        "memory": max(memory, default=math.nan),
        "parameters": max(run.environment.get("parameters", 0) for run in group.runs),
        "leaks": any(run.leaks for run in group.runs),
        "gap": float(np.mean(gaps)) if gaps else math.nan,
    }


def shared(runs: Sequence[Run]) -> Keys:
    """The settings that all runs have in common."""
    first = runs[0].config
    return {
        k: v
        for k, v in first.items()
        if k != "seed" and not grouping.watching(k) and all(r.config.get(k) == v for r in runs)
    }
