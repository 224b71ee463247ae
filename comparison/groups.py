"""Runs → groups: the runs that differ in their seed alone. Every other key in which runs differ is a
column."""

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comparison.load import NOT_COMPARED, Run
from comparison.verdicts import Losses

RATE = "optim.learning_rate"
COMPONENTS = ("norm", "placement", "model.final_norm", "model.embedding_norm", "model.qk_norm")
Keys = dict[str, Any]
MISSING = "—"  # a key that a run does not have


class ComparisonError(ValueError):
    """What cannot be compared, in one line: ``<what>: <why>; <what to do>``."""


@dataclass
class Group:
    """Runs that differ in their seed alone, or in keys that are averaged over.

    Attributes:
        keys: what sets it apart from other groups.
        values: the metric by seed, of runs that finished.
        diverged: seeds of runs that did not.
    """

    keys: Keys
    runs: list[Run] = field(default_factory=list)
    values: dict[int, float] = field(default_factory=dict)
    diverged: set[int] = field(default_factory=set)

    @property
    def seeds(self) -> list[int]:
        return sorted({*self.values, *self.diverged})

    @property
    def losses(self) -> Losses:
        """By seed; of a group in which a run diverged there are none to compare."""
        return {} if self.diverged else self.values


def title(keys: Mapping[str, Any]) -> str:
    """``layernorm pre n_layer=4``: norm and placement are their values, as they are in a run's name."""
    words = [str(keys[key]) for key in ("norm", "placement") if key in keys]
    others = {key: value for key, value in keys.items() if key not in ("norm", "placement")}
    short = [key.split(".")[-1] for key in others]
    for key, value in others.items():
        last = key.split(".")[-1]
        words.append(f"{last if short.count(last) == 1 else key}={shown(value)}")
    return " ".join(words) or "all runs"


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str([*value])
    return f"{value:g}" if isinstance(value, float) else str(value)


def watching(key: str) -> bool:
    return key in NOT_COMPARED or key.startswith(("stats.", "wandb."))


def differing(runs: Sequence[Run]) -> list[str]:
    """The keys, but the seed, in which runs differ. An option of a norm or placement counts where runs of the
    same one differ in it, as others do not have it."""
    names = dict.fromkeys(key for run in runs for key in run.config if key != "seed" and not watching(key))
    found = []
    for key in names:
        part = component(key)
        kinds: dict[Any, set[str]] = {}
        for run in runs:
            kind = run.config.get(part) if part else None
            kinds.setdefault(kind, set()).add(repr(run.config.get(key, MISSING)))
        if any(len(values) > 1 for values in kinds.values()):
            found.append(key)
    found = [key for key in found if not follows(key, found, runs)]
    return sorted(found, key=lambda key: key not in ("norm", "placement"))  # these first


def component(key: str) -> str | None:
    """Of an option of a norm or placement, as model.qk_norm.eps, the key of that: model.qk_norm."""
    return next((part for part in COMPONENTS if key.startswith(f"{part}.")), None)


def follows(key: str, others: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether a key is what another makes it: model.qk_norm what norm is, where that is "same"; an option of
    a norm or placement, as norm.bias, what model.bias is."""
    part = key if key in COMPONENTS else component(key)
    if part and part.startswith("model."):
        its = [(run.config.get(part), run.config.get(key)) for run in runs]
        if its == [(run.config["norm"], run.config.get("norm" + key.removeprefix(part))) for run in runs]:
            return True
    if part in (None, key):
        return False
    having = [run for run in runs if key in run.config]
    for other in others:
        if other in COMPONENTS or component(other):
            continue
        pairs = {(run.config[part], repr(run.config.get(other)), repr(run.config[key])) for run in having}
        if len(pairs) == len({pair[:2] for pair in pairs}) == len({(pair[0], pair[2]) for pair in pairs}):
            return True
    return False


def grouped(runs: Sequence[Run], metric: str) -> list[Group]:
    """The groups, in the order of their runs. Where only their code sets groups apart, that is a key."""
    keys = differing(runs)
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.group, []).append(run)
    several = [{key: some[0].config.get(key, MISSING) for key in keys} for some in by_name.values()]
    groups = []
    for (name, some), own in zip(by_name.items(), several, strict=True):
        if several.count(own) > 1:
            own = own | {"code": name.rpartition("-")[2]}
        group = Group(own, some)
        for run in some:
            if run.diverged:
                group.diverged.add(run.seed)
            elif math.isfinite(value := run.last(metric)):
                group.values[run.seed] = value
        groups.append(group)
    return sorted(groups, key=lambda group: [sortable(group.keys.get(key)) for key in keys])


def sortable(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value))


def averaged(groups: Sequence[Group], key: str) -> list[Group]:
    """Groups that differ in ``key`` alone as one: a seed's value is the mean over those values of the key
    that all have, where it has them all.

    Raises:
        ComparisonError: the groups do not differ in it, or have no value of it in common.
    """
    if not any(key in group.keys for group in groups):
        raise ComparisonError(
            f"--over: the runs do not differ in {key}; they do in {listed(keys_of(groups))}"
        )
    merged: dict[str, list[Group]] = {}
    for group in groups:
        others = {k: v for k, v in group.keys.items() if k != key}
        merged.setdefault(repr(others), []).append(group)
    common_values = set.intersection(*({repr(part.keys[key]) for part in parts} for parts in merged.values()))
    if not common_values:
        raise ComparisonError(f"--over: no value of {key} is common to all groups; choose some with --where")
    found = []
    for some in merged.values():
        parts = [part for part in some if repr(part.keys[key]) in common_values]
        whole = Group({k: v for k, v in parts[0].keys.items() if k != key})
        whole.runs = [run for part in parts for run in part.runs]
        whole.diverged = {seed for part in parts for seed in part.diverged}
        common = set.intersection(*(set(part.values) for part in parts))
        whole.values = {
            seed: sum(part.values[seed] for part in parts) / len(parts) for seed in sorted(common)
        }
        found.append(whole)
    return found


def keys_of(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(key for group in groups for key in group.keys))


def listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "nothing"


def chosen(runs: Sequence[Run], condition: str) -> list[Run]:
    """The runs that are ``model.n_layer=4``, ``norm=layernorm,none`` or ``norm=batch*``.

    Raises:
        ComparisonError: it is no condition, or no run fulfils it.
    """
    key, equals, wanted = condition.partition("=")
    if not equals:
        raise ComparisonError(f"--where: {condition!r} is no condition; write KEY=VALUE, as model.n_layer=4")
    values = dict.fromkeys(shown(run.config[key]) for run in runs if key in run.config)
    if runs and not values:
        near = difflib.get_close_matches(key, {name for run in runs for name in run.config}, n=1)
        raise ComparisonError(
            f"--where: no run has the key {key}" + f"; did you mean {near[0]}?" * bool(near)
        )
    patterns = wanted.split(",")
    found = [run for run in runs if any(same(run.config.get(key, MISSING), pattern) for pattern in patterns)]
    if runs and not found:
        raise ComparisonError(f"--where: no run has {condition}; there are {key}={listed(values)}")
    return found


def same(value: Any, text: str) -> bool:
    """Whether a value of a config is what somebody wrote."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return fnmatch.fnmatchcase(str(value).lower(), text.lower())
    try:
        return float(text) == value
    except ValueError:
        return False


def check_comparable(runs: Sequence[Run], metric: str) -> None:
    """Losses are comparable where the same tokens are evaluated in the same windows, after as many were
    trained on.

    Raises:
        ComparisonError: they are not; it names the first difference, and how to choose.
    """
    questions: dict[str, Callable[[Run], Any]] = {
        "data (the fingerprint of the tokens)": lambda run: run.environment["data"]["fingerprint"][:12],
        "model.block_size (the context that is evaluated)": lambda run: run.config["model.block_size"],
        "tokens trained on": lambda run: int(trained_tokens(run)),
    }
    if metric.startswith("val/") and metric != "val/full_loss":
        questions["train.eval_windows"] = lambda run: run.config["train.eval_windows"]
    for what, of in questions.items():
        counts: dict[Any, list[Run]] = {}
        for run in runs:
            counts.setdefault(of(run), []).append(run)
        if len(counts) > 1:
            differ = listed(f"{value} ({len(some)} runs)" for value, some in counts.items())
            raise ComparisonError(
                f"these runs cannot be compared: {what} differ: {differ}; choose with "
                f"{advice(list(counts.values()))}, or compare them all the same with --mixed"
            )


def trained_tokens(run: Run) -> int:
    """That the run is configured for: a diverged one saw fewer."""
    config = run.config
    return int(config["train.steps"] * config["train.batch_size"] * config["model.block_size"])


def advice(parts: Sequence[Sequence[Run]]) -> str:
    """A condition that the largest part fulfils and no other does; else to name the folders."""
    largest = max(parts, key=len)
    others = [run for part in parts if part is not largest for run in part]
    for key in ("train.steps", "train.batch_size", "model.block_size", "data.corpus", "data.tokenizer"):
        values = {run.config.get(key) for run in largest}
        if len(values) == 1 and not any(run.config.get(key) in values for run in others):
            return f"--where {key}={values.pop()}"
    return "the folders that you name"
