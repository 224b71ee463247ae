"""The table of loose runs, which no study declared: means, differences from a baseline, plain 95 % intervals,
and no verdicts."""

import difflib
import fnmatch
import glob
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from data.errors import ConfigError
from study.runs import RunResult, differing, read_run
from study.statistics import NO_BASELINE, Row, half_width, observed, steps_to_end
from study.table import Table, difference, ordered, plural, short
from training.identity import NOT_IN_IDENTITY
from training.run_folder import REPORT, SELECT, read_json, read_status

METRIC = "val/full_loss"
WHOLE_SPLIT = (METRIC, "val/bpb", SELECT, REPORT)  # train.eval_windows does not change these metrics
BASELINE = {"norm": "layernorm", "placement": "pre"}
DEPTH = 3  # levels of folders that are searched for runs
FINDINGS = "findings"  # the folder of python -m findings in runs/: compared only if the user names it
# the product of these is the number of tokens trained on
LENGTH = ("train.steps", "train.batch_size", "model.block_size")
MOST_LINES = 5  # about skipped folders
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # CSafeLoader is eight times as fast
COMPONENTS = ("norm", "placement", "model.final_norm", "model.embedding_norm", "model.qk_norm")
SECTIONS = ("init_from", "model", "norm", "placement", "optim", "schedule", "train", "precision", "tokens")
NOT_WORDS = {"code", "tokens", "init_from"}  # keys of groups that are not words of a command
SET_BY_NORMS = ("train.steps", "optim.learning_rate")  # what conf/study/norms.yaml sets for all runs
NOTE = (
    "These runs were not declared before they were trained, so there are no verdicts. Of groups that do not "
    "differ from their baseline, about one in 20 has an interval that excludes 0."
)
ONE_SEED = "An interval needs two seeds of both groups: also train seed=1,2."

Keys = dict[str, str]  # dotted key -> value as it is typed


@dataclass(frozen=True)
class LooseRun:
    """A run that has ended, and its settings.

    Attributes:
        group: the name that runs share if they differ only in their seed.
        keys: its config, with the fingerprint of its ``tokens``, and the precision that ``auto`` became.
        length: how many tokens it was trained on.
        overrides: the words of its command.
    """

    result: RunResult
    group: str
    seed: int
    keys: Keys
    length: int
    overrides: list[str]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. ``keys``: norm, placement, and the other keys in which groups
    differ."""

    title: str
    keys: Keys
    runs: dict[int, RunResult]  # by seed


def load(
    paths: Sequence[str],
    metric: str = METRIC,
    baseline: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    mixed: bool = False,
) -> Table:
    """Return the table of the runs in folders.

    Args:
        paths: folders of runs, or globs.
        metric: the metric to compare, by its last value in each run.
        baseline: keys and values of the baseline; in all other keys, the baseline equals the group that is
            compared with it.
        where: conditions on runs, ``KEY=VALUE,…``.
        mixed: also compare runs of different data, context or length.

    Raises:
        ConfigError: there is no such folder, run, key or baseline, or the runs cannot be compared.
    """
    runs, skipped = read(find(paths), metric)
    if not runs:
        raise ConfigError(f"{' '.join(paths)}: {nothing(paths, skipped)}")
    for condition in where:
        runs = select(runs, condition)
    if not mixed:
        check_comparable(runs, metric)
    groups = grouped(runs)
    bases = baselines_by_title(groups, baseline or BASELINE)
    if baseline and not any(bases.values()):
        keys = ", ".join(dict.fromkeys(key for group in groups for key in group.keys))
        raise ConfigError(f"--baseline: no group has {title_of(baseline)}; the groups differ in {keys}")
    rows = [row_of(group, bases[group.title], metric) for group in groups]
    lowest_first = sorted(rows, key=lambda row: (row.mean is None, row.mean, row.title))
    rows = ordered(rows, [row.title for row in lowest_first])
    warnings = [f"the runs differ in {each}" for each in differing([run.result for run in runs])]
    if several := [short(title) for title, found in bases.items() if len(found) > 1]:
        found = f"several groups are the baseline of {several[0]}"
        warnings.append(f"{found}; name one with --baseline KEY=VALUE,…")
    warnings += skipped[:MOST_LINES]
    if (more := len(skipped) - MOST_LINES) > 0:
        warnings.append(f"{plural(more, 'more folder')} skipped")
    return Table(
        name=" ".join(paths),
        conclusion=conclusion(rows, metric),
        caption=f"Mean {named(metric)} over seeds; difference paired by seed; plain 95 % t interval.",
        rows=rows,
        notes=[NOTE] if any(row.low is not None for row in rows) else [NOTE, ONE_SEED],
        warnings=warnings,
        advice=("A verdict needs a study:", study_command(groups, runs)),
        runs={group.title: group.runs for group in groups},
        trials={},
    )


# ---------------------------------------------------------------------------------------------------
# Find and read


def find(paths: Iterable[str]) -> list[Path]:
    """Return the folders of all runs in the folders of ``paths``, each once. Raises ConfigError if there is
    no such folder."""
    folders: dict[Path, Path] = {}
    for path in paths:
        # a path that exists is not a glob, even if it has brackets
        names = [path] if Path(path).exists() else sorted(glob.glob(path))
        matches = [match for match in map(Path, names) if match.is_dir()]
        if not matches:
            beside = {each.name: each for each in Path(path).parent.glob("*") if each.is_dir()}
            similar = difflib.get_close_matches(Path(path).name, beside, n=1)
            advice = "train some runs, or name their folder"
            advice = f"did you mean {beside[similar[0]]}?" if similar else advice
            raise ConfigError(f"{path}: no such folder; {advice}")
        for match in matches:
            folders |= {run.resolve(): run for run in below(match) if run.resolve() not in folders}
    return [*folders.values()]


def below(folder: Path, depth: int = DEPTH) -> list[Path]:
    """Return the folders of the runs in a folder; the folder itself if it is a run's."""
    if any((folder / name).exists() for name in ("metrics.jsonl", "status.json")):
        return [folder]
    children = [child for child in sorted(folder.iterdir()) if child.is_dir()] if depth else []
    shown = [child for child in children if child.name != FINDINGS and not child.name.startswith(".")]
    return [run for child in shown for run in below(child, depth - 1)]


def nothing(paths: Iterable[str], skipped: Sequence[str]) -> str:
    """Return why there is no run to compare, and what to do."""
    if studies := [str(file.parent) for path in paths for file in sorted(Path(path).glob("*/study.json"))]:
        return f"it has studies, but no loose runs; name one of the studies: {', '.join(studies)}"
    more = f" (and {len(skipped) - 1} more)" * (len(skipped) > 1)
    return f"no run here can be compared; {skipped[0]}{more}" if skipped else "no run here; train one first"


def read(folders: Iterable[Path], metric: str) -> tuple[list[LooseRun], list[str]]:
    """Return the runs that have ended, and a line for each other folder."""
    runs: dict[tuple[str, int], LooseRun] = {}
    skipped = []
    for folder in folders:
        try:
            run = read_loose(folder, metric)
            first = runs.setdefault((run.group, run.seed), run)
            if first is not run:
                raise ValueError(f"it is the same run as {first.result.folder}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            skipped.append(f"{folder}: skipped: {' '.join(str(error).split())}")
        except (TypeError, LookupError, AttributeError) as error:
            skipped.append(f"{folder}: skipped: config.yaml or environment.json is damaged ({error!r})")
    return [*runs.values()], skipped


def read_loose(folder: Path, metric: str) -> LooseRun:
    """Return a run. If it is damaged or has not ended, raises an error that ``read`` catches."""
    state = read_status(folder).get("state")
    if state in ("running", "interrupted", "failed"):
        raise ValueError(f"it has not ended ({state})")
    result = read_run(folder, metric)
    config = yaml.load((folder / "config.yaml").read_bytes(), LOADER)
    facts = read_json(folder / "environment.json")
    if config["norm"]["_name_"] != "none":  # in config.yaml, model.qk_norm=same is a copy of the norm
        sites = config["model"].items()
        config["model"] = {key: "same" if value == config["norm"] else value for key, value in sites}
    keys = flat(config) | {"precision": facts["precision"], "tokens": facts["data"]["fingerprint"][:8]}
    if weights := facts.get("init_from"):  # their digest
        keys["init_from"] = f"{Path(config['init_from']).name} {weights[:8]}"
    length = math.prod(int(keys[key]) for key in LENGTH)
    return LooseRun(result, facts["group"], int(keys["seed"]), keys, length, facts["overrides"])


def flat(nested: Mapping[str, Any], prefix: str = "") -> Keys:
    """Return all values by dotted key. The value of a norm or placement is its ``_name_``."""
    keys: Keys = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        else:
            keys[prefix.rstrip(".") if key == "_name_" else f"{prefix}{key}"] = as_text(value)
    return keys


def as_text(value: Any) -> str:
    """Return a setting as it is typed: true, null, 0.001."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------------------------------------
# Select


def select(runs: Sequence[LooseRun], condition: str) -> list[LooseRun]:
    """Return the runs that meet a condition: ``model.n_layer=4``, ``norm=layernorm,none`` or ``norm=batch*``.
    Raises ConfigError if there is none."""
    key, equals, wanted = condition.partition("=")
    if not equals:
        raise ConfigError(f"--where: {condition!r} has no value; write KEY=VALUE, such as model.n_layer=4")
    values = dict.fromkeys(run.keys[key] for run in runs if key in run.keys)
    if not values:
        similar = difflib.get_close_matches(key, {key for run in runs for key in run.keys}, n=1)
        meant = f"did you mean {similar[0]}?" if similar else "a run's config.yaml has all keys"
        raise ConfigError(f"--where: no run has the key {key}; {meant}")
    fitting = [value for value in values if any(matches(value, each) for each in wanted.split(","))]
    if not fitting:
        raise ConfigError(f"--where: no run has {condition}; choose from {key}={','.join(values)}")
    return [run for run in runs if run.keys.get(key) in fitting]


def matches(value: str, wanted: str) -> bool:
    """Return whether a value is what the user typed: a text, a number in any notation, or a pattern."""
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value == wanted or fnmatch.fnmatchcase(value, wanted)


def check_comparable(runs: Sequence[LooseRun], metric: str) -> None:
    """Raise ConfigError unless all runs have the same data, context and length, and the same eval_windows if
    the metric depends on them."""
    keys = ["tokens", "model.block_size"]
    if len({run.length for run in runs}) > 1:
        keys += LENGTH
    if metric.startswith("val/") and metric not in WHOLE_SPLIT:
        keys.append("train.eval_windows")
    for name in keys:
        counts = Counter(run.keys.get(name, "?") for run in runs).most_common(MOST_LINES)
        if len(counts) > 1:
            values = ", ".join(f"{value} in {plural(count, 'run')}" for value, count in counts)
            some = f"choose some of them, for example with --where {name}={counts[0][0]}"
            raise ConfigError(f"{name}: differs between these runs ({values}); {some}, or add --mixed")


# ---------------------------------------------------------------------------------------------------
# Group


def grouped(runs: Iterable[LooseRun]) -> list[Group]:
    """Return the groups, each with its own title."""
    members: dict[str, list[LooseRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        members.setdefault(run.group, []).append(run)
    own = dict(zip(members, distinguishing([first.keys for first, *_ in members.values()]), strict=True))
    counts = Counter(map(title_of, own.values()))
    for name, keys in own.items():
        if counts[title_of(keys)] > 1:  # groups differ only in the code of their norm or placement
            own[name] = keys | {"code": name.rpartition("-")[2]}
    return [
        Group(title_of(keys), keys, {run.seed: run.result for run in members[name]})
        for name, keys in own.items()
    ]


def title_of(keys: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in keys.items())


def distinguishing(configs: Sequence[Keys]) -> list[Keys]:
    """Return each config's norm, placement, and values of the identity's keys in which the configs differ.
    An option of a norm or placement counts only if it differs between configs of the same norm or
    placement. It does not count if it is a copy of the model's option of that name, as norm.bias is."""
    keys = [key for key in dict.fromkeys(chain(*configs)) if key not in BASELINE and is_of_identity(key)]
    values: dict[tuple[str, str], set[str]] = {}
    for config in configs:
        for key in keys:
            values.setdefault((key, config.get(owner_of(key), "")), set()).add(config.get(key, ""))

    def is_shown(key: str, config: Keys) -> bool:
        owner = owner_of(key)
        is_copy = owner and config[key] == config.get(f"model.{key.removeprefix(f'{owner}.')}")
        return key in BASELINE or (len(values[key, config.get(owner, "")]) > 1 and not is_copy)

    def shown(config: Keys) -> Keys:
        return {key: config[key] for key in (*BASELINE, *keys) if key in config and is_shown(key, config)}

    return [shown(config) for config in configs]


def is_of_identity(key: str) -> bool:
    section, _, rest = key.partition(".")
    return section in SECTIONS and not (section == "train" and rest in NOT_IN_IDENTITY)


def owner_of(key: str) -> str:
    """Return the norm or placement that an option belongs to: ``norm`` for ``norm.eps``; "" for none."""
    return next((part for part in COMPONENTS if key.startswith(f"{part}.")), "")


def baselines_by_title(groups: Sequence[Group], wanted: Mapping[str, str]) -> dict[str, list[Group]]:
    """Return the baselines of each group, by the group's title: the groups that have the values ``wanted``
    and equal it in all other keys. A group may have none or several. The baseline of a baseline is itself."""

    def others(group: Group) -> str:
        free = {*wanted, "code"}
        return title_of({k: value for k, value in group.keys.items() if not {k, owner_of(k)} & free})

    def fits(group: Group) -> bool:
        return all(matches(group.keys.get(key, ""), value) for key, value in wanted.items())

    fitting: dict[str, list[Group]] = {}
    for group in filter(fits, groups):
        fitting.setdefault(others(group), []).append(group)
    return {group.title: [group] if fits(group) else fitting.get(others(group), []) for group in groups}


# ---------------------------------------------------------------------------------------------------
# The table


def row_of(group: Group, bases: Sequence[Group], metric: str) -> Row:
    """Return the row of a group. ``bases``: as ``baselines_by_title`` returns them."""
    beside: dict[str, Any] = {}
    if len(bases) != 1:
        beside = {"reason": NO_BASELINE}
    elif bases[0] is not group:
        beside = {"baseline": bases[0].title} | compared(group.runs, bases[0].runs, metric)
    own = observed(group.runs, metric)
    return Row(title=group.title, keys=group.keys, seeds=[*group.runs], **own, **beside)


def compared(own: Mapping[int, RunResult], theirs: Mapping[int, RunResult], metric: str) -> dict[str, Any]:
    """Return the part of a row that compares the runs of a group with those of its baseline, by seed."""
    pairs = [(run, theirs[seed]) for seed, run in own.items() if seed in theirs]
    if any(run.diverged for run, _ in pairs):
        return {"reason": "a seed diverged"}
    if any(base.diverged for _, base in pairs):
        return {"reason": "its baseline: a seed diverged"}
    if not pairs:
        return {"reason": "no seed of the baseline"}
    differences = np.array([run.losses[metric] - base.losses[metric] for run, base in pairs])
    n, mean = len(pairs), float(differences.mean())
    reason = f"{n} of {len(own)} seeds paired" if n < len(own) else None
    found = {"difference": mean, "steps_to_baseline": steps_to_end(pairs), "reason": reason}
    if n > 1:
        half = half_width(differences.std(ddof=1), n, comparisons=1, share=0.05).item()
        found |= {"low": mean - half, "high": mean + half}
    return found


def conclusion(rows: Sequence[Row], metric: str) -> str:
    """Return the sentence above the table. It ignores groups that leak in the mode, training or evaluation,
    in which the metric is measured."""
    mode = "training" if metric.startswith("train/") else "evaluation"
    clean = [(row.mean, row) for row in rows if row.mean is not None and mode not in row.leaks]
    counts = f"{plural(sum(len(row.losses) for row in rows), 'run')} in {plural(len(rows), 'group')}"
    if not clean:
        return f"{counts}; no group has a mean {named(metric)} that counts: a seed diverged or it leaks."
    mean, lowest = min(clean, key=lambda pair: pair[0])
    beside = ""
    if lowest.difference is not None and lowest.baseline:
        beside = f", {difference(lowest)} from {short(lowest.baseline)}"
    return f"{counts}; lowest mean {named(metric)}: {short(lowest.title)}, {mean:.4f}{beside}."


def named(metric: str) -> str:
    return "validation loss" if metric == METRIC else metric


def study_command(groups: Sequence[Group], runs: Sequence[LooseRun]) -> str:
    """Return a command that declares a study of similar arms. The arms are all combinations of the groups'
    values, with the words, the length and the learning rate that all runs share."""
    values = {key: {value: None} for key, value in BASELINE.items()}
    for key, value in sorted({pair for group in groups for pair in group.keys.items()}):
        if key not in NOT_WORDS and not owner_of(key):
            values.setdefault(key, {})[value] = None
    arms = [f"{key}={','.join(each)}" for key, each in values.items()]
    common = set.intersection(*({*run.overrides} for run in runs))
    typed = {word.partition("=")[0].lstrip("+"): word for word in runs[0].overrides if word in common}
    set_by_all = [key for key in SET_BY_NORMS if len({run.keys.get(key) for run in runs}) == 1]
    words = {key: f"{key}={runs[0].keys[key]}" for key in set_by_all} | typed
    shared = [word for key, word in words.items() if key not in {*values, "seed", "fresh"}]
    return shlex.join(["python", "ablate.py", "study=norms", "name=mine", *arms, *shared])
