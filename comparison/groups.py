"""Group runs: runs that differ only in their seed form a group. Every other key that differs is a column."""

import difflib
import fnmatch
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.load import NOT_COMPARED, Run
from comparison.plans import STARTS, USUAL
from data.errors import UserError

RATE = "optim.learning_rate"
COMPONENTS = ("norm", "placement", "model.final_norm", "model.embedding_norm", "model.qk_norm")
Keys = dict[str, Any]
CODE = "code"  # the key of groups that differ only in their norm's code
MISSING = "—"  # stands for the value of a key that a run does not have


class ComparisonError(UserError):
    """Runs that cannot be compared."""


@dataclass
class Group:
    """Runs that differ only in their seed, or in keys that are averaged over."""

    keys: Keys  # the keys that distinguish the group from the others
    runs: list[Run]
    values: dict[int, float]  # the metric by seed, of runs that finished
    diverged: set[int]  # the seeds of runs that diverged

    @property
    def seeds(self) -> list[int]:
        return sorted({*self.values, *self.diverged})

    @property
    def losses(self) -> dict[int, float]:
        """The values by seed; empty if a run of the group diverged."""
        return {} if self.diverged else self.values

    @property
    def leaks(self) -> bool:
        return any(run.leaks for run in self.runs)


def title(keys: Mapping[str, Any]) -> str:
    """Return a title such as ``layernorm pre n_layer=4``; further norms that are absent are left out."""
    words = [str(keys[key]) for key in ("norm", "placement") if key in keys]
    usual = [*USUAL.items(), *STARTS.items()] if words else []
    others = [key for key in keys if key not in ("norm", "placement") and (key, keys[key]) not in usual]
    words += [f"{name}={as_text(keys[key])}" for key, name in short_names(others).items()]
    return " ".join(words) or "all runs"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each key, or the whole key if that of another key is the same."""
    last = {key: key.split(".")[-1] for key in keys}
    counts = Counter(last.values())
    return {key: name if counts[name] == 1 else key for key, name in last.items()}


def as_text(value: Any) -> str:
    """Return a setting as it is typed: true, null, 0.001."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str([*value])
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def join(words: Iterable[str]) -> str:
    return ", ".join(words) or "nothing"


def is_compared(key: str) -> bool:
    return key not in NOT_COMPARED and not key.startswith(("stats.", "wandb."))


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys, except the seed, in which runs differ. An option of a norm or placement counts only if
    it differs between runs with the same norm or placement: other runs do not have the option. A setting of
    the data counts only if the tokens differ."""
    names = dict.fromkeys(key for run in runs for key in run.config if key != "seed" and is_compared(key))
    if len({run.config.get("tokens") for run in runs}) == 1:
        names = {key: None for key in names if not key.startswith("data.")}
    keys = []
    for key in names:
        owner = component(key) or ""
        pairs = {(run.config.get(owner), repr(run.config.get(key, MISSING))) for run in runs}
        if len(pairs) > len({name for name, _ in pairs}):
            keys.append(key)
    keys = [key for key in keys if not follows(key, keys, runs)]
    return sorted(keys, key=lambda key: key not in ("norm", "placement"))  # norm and placement come first


def component(key: str) -> str | None:
    """Return the norm or placement that an option belongs to: model.qk_norm for model.qk_norm.eps."""
    return next((part for part in COMPONENTS if key.startswith(f"{part}.")), None)


def follows(key: str, others: Sequence[str], runs: Sequence[Run]) -> bool:
    """Return True if another key determines ``key``: ``norm`` determines model.qk_norm=same, and model.bias
    may determine an option of a norm such as norm.bias."""
    owner = key if key in COMPONENTS else component(key)
    if owner and owner.startswith("model."):
        values = [(run.config.get(owner), run.config.get(key)) for run in runs]
        if values == [(run.config["norm"], run.config.get("norm" + key.removeprefix(owner))) for run in runs]:
            return True
    if owner in (None, key):
        return False
    configs = [run.config for run in runs if key in run.config]
    for other in others:
        triples = {(config[owner], repr(config.get(other)), repr(config[key])) for config in configs}
        one_to_one = len(triples) == len({t[:2] for t in triples}) == len({(t[0], t[2]) for t in triples})
        if one_to_one and other not in COMPONENTS and not component(other):
            return True
    return False


def group_runs(runs: Sequence[Run], metric: str) -> list[Group]:
    """Return the groups, sorted by their keys. Groups that differ only in their code get the key ``code``."""
    keys = differing(runs)
    members = defaultdict(list)
    for run in runs:
        members[run.group].append(run)
    groups = []
    for runs_of_group in members.values():
        finished = {run.seed: run.last(metric) for run in runs_of_group if not run.diverged}
        values = {seed: value for seed, value in finished.items() if math.isfinite(value)}
        diverged = {run.seed for run in runs_of_group if run.diverged}
        group_keys = {key: runs_of_group[0].config.get(key, MISSING) for key in keys}
        groups.append(Group(group_keys, runs_of_group, values, diverged))
    all_keys = [group.keys for group in groups]
    for name, group in zip(members, groups, strict=True):
        if all_keys.count(group.keys) > 1:
            group.keys = group.keys | {CODE: code_of(name)}

    def sort_key(group: Group) -> list[tuple[bool, float, str]]:  # numbers first
        values = [group.keys.get(key) for key in keys]
        return [(False, float(v), "") if isinstance(v, int | float) else (True, 0.0, str(v)) for v in values]

    return sorted(groups, key=sort_key)


def code_of(group: str) -> str:
    """Return the hash of the code in the name of a group."""
    return group.rpartition("-")[2]


def average(groups: Sequence[Group], key: str) -> tuple[list[Group], str]:
    """Merge groups that differ only in ``key``. A seed's value is the mean over the values of ``key`` that
    all groups have; a seed that lacks one of these values is left out. Return the groups, and a sentence on
    these values. Raises ComparisonError."""
    if key == "seed":
        raise ComparisonError("--over: each number is a mean over seeds already; name another key")
    if not any(key in group.keys for group in groups):
        names = join(keys_of(groups))
        raise ComparisonError(f"--over: the runs do not differ in {key}; they differ in {names}")
    families = families_over(groups, key)
    common = set.intersection(*({value_in(part, key) for part in parts} for _, parts in families))
    if not common:
        raise ComparisonError(f"--over: no value of {key} is common to all groups; pick groups with --where")
    merged = []
    for keys, family in families:
        parts = [part for part in family if value_in(part, key) in common]
        seeds = sorted(set.intersection(*(set(part.values) for part in parts)))
        values = {seed: sum(part.values[seed] for part in parts) / len(parts) for seed in seeds}
        diverged = set().union(*(part.diverged for part in parts))
        merged.append(Group(keys, [run for part in parts for run in part.runs], values, diverged))
    kept = {value_in(group, key): as_text(group.keys.get(key, MISSING)) for group in groups}
    sentence = f"Each number is a mean over {key}={','.join(kept[text] for text in kept if text in common)}"
    if unused := sorted(text for value, text in kept.items() if value not in common):
        sentence += f"; runs at {join(unused)}, which not all arms have, are left out"
    return merged, f"{sentence}."


def value_in(group: Group, key: str) -> str:
    return repr(group.keys.get(key, MISSING))


def families_over(groups: Sequence[Group], key: str) -> list[tuple[Keys, list[Group]]]:
    """Return families of groups that differ only in ``key``, each with the keys that its groups share."""
    families: dict[str, tuple[Keys, list[Group]]] = {}
    for group in groups:
        keys = {k: v for k, v in group.keys.items() if k != key}
        families.setdefault(repr(keys), (keys, []))[1].append(group)
    return [*families.values()]


def keys_of(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(key for group in groups for key in group.keys))


def select(runs: Sequence[Run], condition: str) -> list[Run]:
    """Return the runs that fulfil a condition such as ``model.n_layer=4``, ``norm=layernorm,none`` or
    ``norm=batch*``. Raises ComparisonError if no run does."""
    key, equals, patterns = condition.partition("=")
    if not equals:
        raise ComparisonError(f"--where: {condition!r} has no value; write KEY=VALUE, e.g. model.n_layer=4")
    configs = [run.config | {CODE: code_of(run.group)} for run in runs]
    values = dict.fromkeys(as_text(config[key]) for config in configs if key in config)
    if not values:
        similar = difflib.get_close_matches(key, {name for run in runs for name in run.config}, n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        raise ComparisonError(f"--where: no run has the key {key}{hint}")
    wanted = split(patterns)
    is_wanted = [any(matches(config.get(key, MISSING), text) for text in wanted) for config in configs]
    selected = [run for run, chosen in zip(runs, is_wanted, strict=True) if chosen]
    if not selected:
        raise ComparisonError(f"--where: no run has {condition}; available: {key}={join(values)}")
    return selected


def key_values(text: str) -> dict[str, str]:
    """Return ``norm=dyt,placement=pre`` as a dict. Raises ComparisonError."""
    pairs = [part.split("=", 1) for part in split(text)]
    if any(len(pair) != 2 for pair in pairs):
        raise ComparisonError(f"{text}: write KEY=VALUE,…, for example norm=layernorm,placement=pre")
    return dict(pairs)


def split(text: str) -> list[str]:
    """Split at commas, except those of a list such as ``[0.9, 0.95]``."""
    return re.split(r",(?![^\[]*\])", text)


def has_values(keys: Keys, wanted: Mapping[str, str]) -> bool:
    return all(matches(keys.get(key, MISSING), text) for key, text in wanted.items())


def matches(value: Any, text: str) -> bool:
    """Return True if a config's value matches the text that the user typed."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        own, typed = as_text(value).lower(), text.lower()
        return own == typed or fnmatch.fnmatchcase(own, typed)
    try:
        return float(text) == value
    except ValueError:
        return False
