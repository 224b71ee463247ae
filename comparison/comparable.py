"""Check that runs can be compared: that they have tokens, context and length of training in common."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from comparison.groups import ComparisonError, as_text, join
from comparison.load import Run

# These do not depend on train.eval_windows.
WHOLE_SPLIT = ("val/full_loss", "val/bpb", "val/select_loss", "val/report_loss")
LENGTHS = ("train.steps", "train.batch_size", "model.block_size")
TEXTS = ("data.corpus", "data.tokenizer", "tokens")


class IncomparableError(ComparisonError):
    """Runs that differ in what every compared run must have in common."""


def conditions(metric: str) -> dict[str, Callable[[Run], Any]]:
    """Return what runs must have in common to be compared: tokens, context, windows, length of training."""
    properties: dict[str, Callable[[Run], Any]] = {
        "data (the fingerprint of the tokens)": lambda run: run.environment["data"]["fingerprint"][:12],
        "model.block_size (the context that is evaluated)": lambda run: run.config["model.block_size"],
        "tokens trained on": lambda run: trained_tokens(run.config),
    }
    if metric.startswith("val/") and metric not in WHOLE_SPLIT:
        properties["train.eval_windows"] = lambda run: run.config["train.eval_windows"]
    return properties


def check_comparable(runs: Sequence[Run], metric: str) -> None:
    """Raise IncomparableError unless runs have all ``conditions`` in common."""
    properties = conditions(metric)
    alike = defaultdict(list)
    for run in runs:
        alike[tuple(value_of(run) for value_of in properties.values())].append(run)
    for name, value_of in properties.items():
        counts = Counter(value_of(run) for run in runs)
        if len(counts) > 1:
            values = join(f"{value} ({count} of {len(runs)} runs)" for value, count in counts.items())
            raise IncomparableError(
                f"these runs cannot be compared, as they differ in {name}: {values}; "
                f"{advice(alike.values())}, or compare them anyway with --mixed"
            )


def trained_tokens(config: Mapping[str, Any]) -> int:
    """Return how many tokens a run was to train on; a diverged run saw fewer."""
    return int(config["train.steps"] * config["train.batch_size"] * config["model.block_size"])


def advice(parts: Collection[Sequence[Run]]) -> str:
    """Tell how to select the largest part of the runs: by conditions, or else by folders."""
    largest, *others = sorted(parts, key=len, reverse=True)
    left = [run.config for part in others for run in part]
    options = selecting([run.config for run in largest], left)
    return "name only the folders of comparable runs" if options is None else f"select some with{options}"


def selecting(wanted: Sequence[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the options of compare.py that select runs of the wanted configs and none of the others: "" if
    none are needed, None if no options do it."""
    left, options = [*others], ""
    for key in (*LENGTHS, *TEXTS, "train.eval_windows"):
        values = dict.fromkeys(config.get(key) for config in wanted)
        alike = [config for config in left if config.get(key) in values]
        if len(alike) < len(left):
            condition = f"{key}={','.join(map(as_text, values))}"
            left, options = alike, f"{options} --where {shlex.quote(condition)}"
    return None if left else options


def kind_of(config: Mapping[str, Any]) -> list[Any]:
    """Return the length and the text of a run, by which ``selecting`` selects."""
    return [config.get(key) for key in (*LENGTHS, *TEXTS)]
