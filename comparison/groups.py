"""Group runs: those that differ only in their seed form a group. Every other key that differs is a column."""

import difflib
import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comparison.load import NOT_COMPARED, Run
from comparison.verdicts import Losses
from system.errors import UserError

RATE = "optim.learning_rate"
COMPONENTS = ("norm", "placement", "model.final_norm", "model.embedding_norm", "model.qk_norm")
Keys = dict[str, Any]
MISSING = "—"  # stands for the value of a key that a run does not have


class ComparisonError(UserError):
    """Runs that cannot be compared."""


@dataclass
class Group:
    """Runs that differ only in their seed, or in keys that are averaged over.

    Attributes:
        keys: the values that distinguish the group from the others.
        values: the metric by seed, of runs that finished.
        diverged: the seeds of runs that diverged.
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
        """The values by seed, or none if a run of the group diverged."""
        return {} if self.diverged else self.values


def title(keys: Mapping[str, Any]) -> str:
    """Return ``layernorm pre n_layer=4``: norm and placement without their keys, as in a run's name."""
    words = [str(keys[key]) for key in ("norm", "placement") if key in keys]
    others = {key: value for key, value in keys.items() if key not in ("norm", "placement")}
    short = [key.split(".")[-1] for key in others]
    for (key, value), last in zip(others.items(), short, strict=True):
        words.append(f"{last if short.count(last) == 1 else key}={as_text(value)}")
    return " ".join(words) or "all runs"


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str([*value])
    return f"{value:g}" if isinstance(value, float) else str(value)


def join(words: Iterable[str]) -> str:
    return ", ".join(words) or "nothing"


def is_watching(key: str) -> bool:
    return key in NOT_COMPARED or key.startswith(("stats.", "wandb."))


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys, except the seed, in which runs differ. An option of a norm or placement counts only if
    it differs between runs with the same norm or placement: others do not have it."""
    names = dict.fromkeys(key for run in runs for key in run.config if key != "seed" and not is_watching(key))
    keys = []
    for key in names:
        owner = component(key)
        values = defaultdict(set)
        for run in runs:
            values[run.config.get(owner) if owner else None].add(repr(run.config.get(key, MISSING)))
        if any(len(different) > 1 for different in values.values()):
            keys.append(key)
    keys = [key for key in keys if not follows(key, keys, runs)]
    return sorted(keys, key=lambda key: key not in ("norm", "placement"))  # these two come first


def component(key: str) -> str | None:
    """Return the norm or placement that an option belongs to: model.qk_norm for model.qk_norm.eps."""
    return next((part for part in COMPONENTS if key.startswith(f"{part}.")), None)


def follows(key: str, others: Sequence[str], runs: Sequence[Run]) -> bool:
    """Return whether another key determines this one: ``norm`` determines model.qk_norm if that is "same",
    and model.bias determines an option of a norm such as norm.bias."""
    part = key if key in COMPONENTS else component(key)
    if part and part.startswith("model."):
        values = [(run.config.get(part), run.config.get(key)) for run in runs]
        if values == [(run.config["norm"], run.config.get("norm" + key.removeprefix(part))) for run in runs]:
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


def group_runs(runs: Sequence[Run], metric: str) -> list[Group]:
    """Return the groups, sorted by their keys. Groups that differ only in their code get the key ``code``."""
    keys = differing(runs)
    members = defaultdict(list)
    for run in runs:
        members[run.group].append(run)
    groups = [
        Group({key: same[0].config.get(key, MISSING) for key in keys}, same) for same in members.values()
    ]
    all_keys = [group.keys for group in groups]
    for name, group in zip(members, groups, strict=True):
        if all_keys.count(group.keys) > 1:
            group.keys = group.keys | {"code": name.rpartition("-")[2]}
        group.diverged = {run.seed for run in group.runs if run.diverged}
        values = {run.seed: run.last(metric) for run in group.runs if not run.diverged}
        group.values = {seed: value for seed, value in values.items() if math.isfinite(value)}
    return sorted(groups, key=lambda group: [sort_key(group.keys.get(key)) for key in keys])


def sort_key(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def average(groups: Sequence[Group], key: str) -> list[Group]:
    """Merge groups that differ only in ``key``. The value of a seed is the mean over the values of the key
    that all groups have; seeds that lack one of them are left out.

    Raises:
        ComparisonError: the groups do not differ in the key, or have no value of it in common.
    """
    if not any(key in group.keys for group in groups):
        raise ComparisonError(
            f"--over: the runs do not differ in {key}; they differ in {join(keys_of(groups))}"
        )
    families = defaultdict(list)
    for group in groups:
        families[repr({k: v for k, v in group.keys.items() if k != key})].append(group)
    common = set.intersection(*({repr(part.keys[key]) for part in parts} for parts in families.values()))
    if not common:
        raise ComparisonError(f"--over: no value of {key} is common to all groups; choose some with --where")
    merged = []
    for family in families.values():
        parts = [part for part in family if repr(part.keys[key]) in common]
        seeds = sorted(set.intersection(*(set(part.values) for part in parts)))
        merged.append(
            Group(
                keys={k: v for k, v in parts[0].keys.items() if k != key},
                runs=[run for part in parts for run in part.runs],
                values={seed: sum(part.values[seed] for part in parts) / len(parts) for seed in seeds},
                diverged={seed for part in parts for seed in part.diverged},
            )
        )
    return merged


def keys_of(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(key for group in groups for key in group.keys))


def select(runs: Sequence[Run], condition: str) -> list[Run]:
    """Return the runs that fulfil ``model.n_layer=4``, ``norm=layernorm,none`` or ``norm=batch*``.

    Raises:
        ComparisonError: the condition is malformed, or no run fulfils it.
    """
    key, equals, patterns = condition.partition("=")
    if not equals:
        raise ComparisonError(f"--where: {condition!r} has no value; write KEY=VALUE, as model.n_layer=4")
    values = dict.fromkeys(as_text(run.config[key]) for run in runs if key in run.config)
    if runs and not values:
        near = difflib.get_close_matches(key, {name for run in runs for name in run.config}, n=1)
        raise ComparisonError(
            f"--where: no run has the key {key}" + f"; did you mean {near[0]}?" * bool(near)
        )
    selected = [
        run
        for run in runs
        if any(matches(run.config.get(key, MISSING), pattern) for pattern in patterns.split(","))
    ]
    if runs and not selected:
        raise ComparisonError(f"--where: no run has {condition}; available: {key}={join(values)}")
    return selected


def matches(value: Any, text: str) -> bool:
    """Return whether a value of a config is what the user typed."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return fnmatch.fnmatchcase(str(value).lower(), text.lower())
    try:
        return float(text) == value
    except ValueError:
        return False


def check_comparable(runs: Sequence[Run], metric: str) -> None:
    """Check that the losses are comparable: same tokens, same context and windows, same length of training.

    Raises:
        ComparisonError: they are not; the message names the first difference.
    """
    properties: dict[str, Callable[[Run], Any]] = {
        "data (the fingerprint of the tokens)": lambda run: run.environment["data"]["fingerprint"][:12],
        "model.block_size (the context that is evaluated)": lambda run: run.config["model.block_size"],
        "tokens trained on": lambda run: int(trained_tokens(run)),
    }
    if metric.startswith("val/") and metric != "val/full_loss":
        properties["train.eval_windows"] = lambda run: run.config["train.eval_windows"]
    for name, value_of in properties.items():
        by_value = defaultdict(list)
        for run in runs:
            by_value[value_of(run)].append(run)
        if len(by_value) > 1:
            values = join(f"{value} ({len(members)} runs)" for value, members in by_value.items())
            raise ComparisonError(
                f"these runs cannot be compared: {name} differ: {values}; choose with "
                f"{advice(list(by_value.values()))}, or compare them anyway with --mixed"
            )


def trained_tokens(run: Run) -> int:
    """Return the tokens that the run was configured for; a diverged run saw fewer."""
    config = run.config
    return int(config["train.steps"] * config["train.batch_size"] * config["model.block_size"])


def advice(parts: Sequence[Sequence[Run]]) -> str:
    """Return a condition that only the largest part fulfils; if there is none, the advice to name folders."""
    largest = max(parts, key=len)
    others = [run for part in parts if part is not largest for run in part]
    for key in ("train.steps", "train.batch_size", "model.block_size", "data.corpus", "data.tokenizer"):
        values = {run.config.get(key) for run in largest}
        if len(values) == 1 and not any(run.config.get(key) in values for run in others):
            return f"--where {key}={values.pop()}"
    return "the folders that you name"
