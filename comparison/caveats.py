"""Caveats of a comparison: the data regime, coupled settings, other differences."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.comparable import trained_tokens
from comparison.groups import as_text, join, title
from comparison.load import Run


def regime(runs: Sequence[Run]) -> str:
    """Return a sentence that says how much data the runs had and how long they trained."""
    tokens = [run.environment["data"].get("train_tokens", 0) for run in runs]
    trained = [trained_tokens(run.config) for run in runs]
    epochs = [t / max(1, unique) for t, unique in zip(trained, tokens, strict=True)]
    parts = [
        f"{span([run.environment.get('parameters', 0) for run in runs], ',')} parameters",
        f"{span(tokens, ',')} unique training tokens",
        f"{span(trained, ',')} tokens trained on",
        f"{' to '.join(dict.fromkeys(map(in_epochs, (min(epochs), max(epochs)))))} epochs",
    ]
    if gaps := finite_gaps(runs):
        parts.append(f"validation − training loss {min(gaps):+.3f} to {max(gaps):+.3f}")
    return "Data regime: " + "; ".join(parts) + "."


def in_epochs(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def span(values: Sequence[float], form: str) -> str:
    low, high = min(values), max(values)
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"


def couplings(runs: Sequence[Run]) -> list[str]:
    """Return one sentence, in a list, on what norm, placement and size decide; [] if they decide nothing."""
    keys = ("norm", "placement", "model.n_layer", "model.n_embd", "model.init")
    varied = [key for key in keys if len({run.config.get(key) for run in runs}) > 1]
    decided = sorted({key for run in runs for key in run.environment.get("settled", {})})
    phrases = [f"{key}={values_by_arm(key, runs, varied)}" for key in decided]
    return [f"Norm, placement and size decide: {'; '.join(phrases)}."] if phrases else []


def values_by_arm(key: str, runs: Sequence[Run], varied: Sequence[str]) -> str:
    """Return the values of a setting that runs decided, each with those that have it, named by as few of the
    ``varied`` keys as tell them apart: such as ``true for pre and post, else false``."""
    settled = [(run, run.environment.get("settled", {})) for run in runs]
    values = [(run, as_text(by_key[key])) for run, by_key in settled if key in by_key]
    own_first = sorted(varied, key=lambda part: not key.startswith(f"{part}."))  # placement.alpha: placement
    for parts in (*([part] for part in own_first), varied):
        names: dict[str, dict[str, None]] = defaultdict(dict)  # value -> names, in order
        for run, value in values:
            names[value][title({part: run.config.get(part) for part in parts})] = None
        if sum(map(len, names.values())) == len({name for alike in names.values() for name in alike}):
            break  # no name has two values
    majority = max(names, key=lambda value: len(names[value])) if len(values) == len(runs) else None
    phrases = [f"{value} for {join(alike)}" for value, alike in names.items() if value != majority]
    phrases += [f"else {majority}" if phrases else majority] if majority is not None else []
    return ", ".join(phrases)


def finite_gaps(runs: Sequence[Run]) -> list[float]:
    """Return val/full_loss − the mean training loss of the last tenth of the steps, for each finished run
    that has both losses."""
    gaps = []
    for run in runs:
        steps, losses = run.curve("train/loss")
        tenth = losses[steps >= 0.9 * run.config["train.steps"]]
        if not run.diverged and len(tenth) and math.isfinite(gap := run.last("val/full_loss") - tenth.mean()):
            gaps.append(float(gap))
    return gaps


def kind_of_device(environment: Mapping[str, Any]) -> str:
    return str(environment["device"]).partition(":")[0]


def differences(runs: Sequence[Run], who: str) -> list[str]:
    """Return warnings about other things that may explain a difference: other code, versions or machines.
    ``who``: the runs, in words."""
    environments = [run.environment for run in runs]
    conditions = {
        "torch": [e["packages"]["torch"] for e in environments],
        "processor or GPU": [e.get("gpu") or f"{e['processor']} ({kind_of_device(e)})" for e in environments],
        **{key: [e[key] for e in environments] for key in ("precision", "threads", "compile")},
        "deterministic": [e.get("deterministic", True) for e in environments],  # always, in earlier versions
    }
    warnings = []
    for name, values in conditions.items():
        if len(distinct := sorted({*map(str, values)})) > 1:
            warnings.append(f"{who} differ in {name}: {join(distinct)}")
    codes = [environment.get("code", {}) for environment in environments]
    files = sorted({file for code in codes for file in code})
    if changed := [file for file in files if len({code.get(file) for code in codes}) > 1]:
        folders = sorted({file.rpartition("/")[0] or file for file in changed})
        listed = changed if len(changed) <= 5 else [f"{len(changed)} files of {join(folders)}"]
        warnings.append(f"{who} differ in the project's code: {join(listed)}")
    return warnings
