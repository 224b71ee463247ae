"""Compare runs that no study declared: means, differences from a baseline, plain 95 % intervals.

There are no verdicts: a verdict needs a study. compare.py shows the table. Torch is not imported here.
"""

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
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import Field

from data.errors import ConfigError
from study.runs import Count, File, RunResult, checked, differing, read_run
from study.statistics import NO_BASELINE, Row, average, half_width, observed, steps_to
from study.table import Table, short
from training.identity import NOT_IN_IDENTITY
from training.run_folder import read_json, read_status

METRIC = "val/full_loss"
WHOLE_SPLIT = (METRIC, "val/bpb", "val/select_loss", "val/report_loss")  # do not depend on train.eval_windows
BASELINE = {"norm": "layernorm", "placement": "pre"}
DEPTH = 3  # levels of folders in which runs are looked for
FINDINGS = "findings"  # the folder of python -m findings in runs/, compared only if the user names it
LENGTH = ("train.steps", "train.batch_size", "model.block_size")  # their product: tokens trained on
MOST_LINES = 5  # about skipped folders
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is eight times as fast
COMPONENTS = ("norm", "placement", "model.final_norm", "model.embedding_norm", "model.qk_norm")
SECTIONS = ("init_from", "model", "norm", "placement", "optim", "schedule", "train", "precision", "tokens")
COMPARED = ("baseline", "difference", "low", "high", "steps_to_baseline", "reason")  # parts of a Row
NOT_WORDS = {"code", "tokens", "init_from"}  # keys of groups that no word of a command sets
SET_BY_NORMS = ("train.steps", "optim.learning_rate")  # keys that conf/study/norms.yaml sets for all runs
NOTE = (
    "These runs were not declared before they were trained, so there are no verdicts. About one in 20 groups "
    "that equal their baseline has an interval that excludes 0."
)
ONE_SEED = "An interval needs two seeds of both groups: train seed=1,2, too."

Keys = dict[str, str]  # dotted key -> value as it is typed


@dataclass(frozen=True)
class Loose:
    """A run that has ended, and what was asked of it.

    Attributes:
        group: a name that runs share if they differ in their seed alone.
        keys: its config, with ``tokens``, their fingerprint, and the precision that ``auto`` became.
        overrides: the words of its command.
    """

    result: RunResult
    group: str
    seed: int
    keys: Keys
    overrides: list[str]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone; ``keys`` has norm, placement, and what else groups differ in."""

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
        metric: its last value in each run is compared.
        baseline: values of keys that the baseline has; its other keys are those of the group.
        where: conditions on runs, ``KEY=VALUE,…``.
        mixed: compare also runs of other data, context or length.

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
    bases = find_baselines(groups, baseline or BASELINE)
    if baseline and not any(bases.values()):
        keys = ", ".join(dict.fromkeys(key for group in groups for key in group.keys))
        raise ConfigError(f"--baseline: no group has {title_of(baseline)}; the groups differ in {keys}")
    rows = ordered([row_of(group, bases[group.title], metric) for group in groups])
    return Table(
        name=" ".join(paths),
        conclusion=conclusion(rows, metric),
        caption=f"Mean {named(metric)} over seeds; difference paired by seed; plain 95 % t interval.",
        rows=rows,
        notes=[NOTE] if any(row.low is not None for row in rows) else [NOTE, ONE_SEED],
        warnings=warnings(runs, bases, skipped),
        advice=("A verdict needs a study:", study_command(groups, runs)),
        runs={group.title: group.runs for group in groups},
        trials={},
    )


# ---------------------------------------------------------------------------------------------------
# Find and read


def find(paths: Iterable[str]) -> list[Path]:
    """Return the folders of runs in folders that paths or globs name, each once. Raises ConfigError if a path
    does not exist."""
    folders: dict[Path, Path] = {}
    for path in paths:
        names = [path] if Path(path).exists() else sorted(glob.glob(path))  # a name may have brackets
        matches = [match for match in map(Path, names) if match.is_dir()]
        if not matches:
            raise ConfigError(f"{path}: no such folder; train some runs, or name the folder of your runs")
        for run in (run for match in matches for run in below(match)):
            folders.setdefault(run.resolve(), run)
    return [*folders.values()]


def below(folder: Path, depth: int = DEPTH) -> list[Path]:
    """Return the folders of runs in a folder, or the folder itself if it is one."""
    if any((folder / name).exists() for name in ("metrics.jsonl", "status.json")):
        return [folder]
    children = [child for child in sorted(folder.iterdir()) if child.is_dir()] if depth else []
    shown = [child for child in children if child.name != FINDINGS and not child.name.startswith(".")]
    return [run for child in shown for run in below(child, depth - 1)]


def nothing(paths: Iterable[str], skipped: Sequence[str]) -> str:
    """Return why there is no run to compare, and what to do."""
    if studies := [str(file.parent) for path in paths for file in sorted(Path(path).glob("*/study.json"))]:
        return f"it has no runs, but studies; name one of them: {', '.join(studies)}"
    more = f" (and {len(skipped) - 1} more)" * (len(skipped) > 1)
    return f"no run here can be compared; {skipped[0]}{more}" if skipped else "no run here; train one first"


def read(folders: Iterable[Path], metric: str) -> tuple[list[Loose], list[str]]:
    """Return the runs that have ended, and a line for each other folder."""
    runs: dict[tuple[str, int], Loose] = {}
    skipped = []
    for folder in folders:
        try:
            run = read_loose(folder, metric)
            first = runs.setdefault((run.group, run.seed), run)
            if first is not run:
                raise ValueError(f"it is the same run as {first.result.folder}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            skipped.append(f"{folder}: skipped: {' '.join(str(error).split())}")
    return [*runs.values()], skipped


class Named(File):
    name: str = Field(alias="_name_", pattern=r"^\w[\w.+-]*$")


class Context(File):
    block_size: Count


class Length(File):
    steps: Count
    batch_size: Count


class Config(File):
    """What every comparison needs of config.yaml; its other keys are shown as they are."""

    seed: int = Field(ge=0, lt=2**63)
    norm: Named
    placement: Named
    model: Context
    train: Length
    init_from: str | None = None


class Data(File):
    fingerprint: str


class Facts(File):
    """What environment.json says of the run's identity."""

    group: str
    precision: Literal["fp32", "bf16"]
    data: Data
    init_from: str | None = None  # digest of the weights
    overrides: list[str]


def read_loose(folder: Path, metric: str) -> Loose:
    """Return a run. Raises OSError, yaml.YAMLError, and ValueError: it is damaged, or it has not ended."""
    state = read_status(folder).get("state")
    if state in ("running", "interrupted", "failed"):
        raise ValueError(f"it has not ended ({state})")
    result = read_run(folder, metric)
    plain = yaml.load((folder / "config.yaml").read_bytes(), LOADER)
    config = checked(Config, plain, "config.yaml")
    facts = checked(Facts, read_json(folder / "environment.json"), "environment.json")
    norm = plain["norm"]
    if config.norm.name != "none":  # model.qk_norm=same has become a copy of the norm
        sites = plain["model"].items()
        plain["model"] = {key: "same" if value == norm else value for key, value in sites}
    keys = flat(plain) | {"precision": facts.precision, "tokens": facts.data.fingerprint[:8]}
    if facts.init_from:
        keys["init_from"] = f"{Path(config.init_from or '').name} {facts.init_from[:8]}"
    return Loose(result, facts.group, config.seed, keys, facts.overrides)


def flat(nested: Mapping[str, Any], prefix: str = "") -> Keys:
    """Return the values by dotted key; that of a norm or placement is its ``_name_``."""
    keys: Keys = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        else:
            keys[prefix.rstrip(".") if key == "_name_" else f"{prefix}{key}"] = as_text(value)
    return keys


def as_text(value: Any) -> str:
    """Return a setting as it is typed: true, null, 0.001."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.isprintable() else repr(text)


# ---------------------------------------------------------------------------------------------------
# Select


def select(runs: Sequence[Loose], condition: str) -> list[Loose]:
    """Return the runs that fulfil ``model.n_layer=4``, ``norm=layernorm,none`` or ``norm=batch*``. Raises
    ConfigError if there is none."""
    key, equals, wanted = condition.partition("=")
    if not equals:
        raise ConfigError(f"--where: {condition!r} has no value; write KEY=VALUE, such as model.n_layer=4")
    values = dict.fromkeys(run.keys[key] for run in runs if key in run.keys)
    if not values:
        similar = difflib.get_close_matches(key, {key for run in runs for key in run.keys}, n=1)
        meant = f"did you mean {similar[0]}?" if similar else "config.yaml of a run has all keys"
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


def check_comparable(runs: Sequence[Loose], metric: str) -> None:
    """Raise ConfigError unless all runs have the same data, context and length of training."""

    def length(run: Loose) -> int:
        return math.prod(int(run.keys[key]) for key in LENGTH)

    keys = ["tokens", "model.block_size"]
    if len({*map(length, runs)}) > 1:
        keys += LENGTH
    if metric.startswith("val/") and metric not in WHOLE_SPLIT:
        keys.append("train.eval_windows")
    for name in keys:
        counts = Counter(run.keys.get(name, "?") for run in runs)
        if len(counts) > 1:
            most = counts.most_common(MOST_LINES)
            values = ", ".join(f"{value} in {plural(count, 'run')}" for value, count in most)
            some = f"choose some, as by --where {name}={most[0][0]}"
            raise ConfigError(f"{name}: differs between these runs ({values}); {some}, or add --mixed")


# ---------------------------------------------------------------------------------------------------
# Group


def grouped(runs: Iterable[Loose]) -> list[Group]:
    members: dict[str, dict[int, Loose]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        members.setdefault(run.group, {})[run.seed] = run
    configs = [next(iter(group.values())).keys for group in members.values()]
    own = dict(zip(members, distinguishing(configs), strict=True))
    counts = Counter(map(title_of, own.values()))
    groups = []
    for name, keys in own.items():
        if counts[title_of(keys)] > 1:  # the code of the norm or of the placement was edited
            keys["code"] = name.rpartition("-")[2]
        results = {seed: run.result for seed, run in members[name].items()}
        groups.append(Group(title_of(keys), keys, results))
    return groups


def title_of(keys: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in keys.items())


def distinguishing(configs: Sequence[Keys]) -> list[Keys]:
    """Return norm and placement of each config, and the keys of a run's identity in which configs differ. An
    option of a norm or placement is there if it differs between configs with the same one, and is not a copy
    of the model's option of that name, as norm.bias is."""
    keys = [key for key in dict.fromkeys(chain(*configs)) if key not in BASELINE and is_of_identity(key)]
    values: dict[tuple[str, str], set[str]] = {}
    for config in configs:
        for key in keys:
            values.setdefault((key, config.get(owner_of(key), "")), set()).add(config.get(key, ""))

    def is_shown(key: str, config: Keys) -> bool:
        owner = owner_of(key)
        is_copy = owner and config[key] == config.get(f"model.{key.removeprefix(f'{owner}.')}")
        return len(values[key, config.get(owner, "")]) > 1 and not is_copy

    shown = [[key for key in keys if key in config and is_shown(key, config)] for config in configs]
    return [
        {key: config[key] for key in (*BASELINE, *own)} for own, config in zip(shown, configs, strict=True)
    ]


def is_of_identity(key: str) -> bool:
    section, _, rest = key.partition(".")
    return section in SECTIONS and not (section == "train" and rest in NOT_IN_IDENTITY)


def owner_of(key: str) -> str:
    """Return the norm or placement that an option belongs to: ``norm`` for ``norm.eps``; "" for none."""
    return next((part for part in COMPONENTS if key.startswith(f"{part}.")), "")


def find_baselines(groups: Sequence[Group], wanted: Mapping[str, str]) -> dict[str, list[Group]]:
    """Return for each group, by title, those that have the values ``wanted`` and otherwise its own: none, its
    baseline, or several; itself alone, if it is a baseline."""

    def others(group: Group) -> Keys:
        free = {*wanted, "code"}
        return {key: value for key, value in group.keys.items() if not {key, owner_of(key)} & free}

    def fits(group: Group) -> bool:
        return all(matches(group.keys.get(key, ""), value) for key, value in wanted.items())

    fitting: dict[str, list[Group]] = {}
    for group in filter(fits, groups):
        fitting.setdefault(title_of(others(group)), []).append(group)
    return {
        group.title: [group] if fits(group) else fitting.get(title_of(others(group)), []) for group in groups
    }


# ---------------------------------------------------------------------------------------------------
# The table


def row_of(group: Group, bases: Sequence[Group], metric: str) -> Row:
    """Return the row of a group; ``bases`` are those of find_baselines."""
    beside: dict[str, Any] = dict.fromkeys(COMPARED)
    if len(bases) != 1:
        beside["reason"] = NO_BASELINE
    elif bases[0] is not group:
        beside |= {"baseline": bases[0].title} | compared(group.runs, bases[0].runs, metric)
    losses = {seed: run.losses.get(metric) for seed, run in group.runs.items()}
    return Row(
        title=group.title,
        keys=group.keys,
        seeds=[*group.runs],
        losses=losses,
        mean=average(losses.values()),
        **beside,
        outcome=None,
        settings={},
        half_the_trials=None,
        edges=[],
        seeds_needed=None,
        **observed(group.runs.values()),
    )


def compared(own: Mapping[int, RunResult], theirs: Mapping[int, RunResult], metric: str) -> dict[str, Any]:
    """Return what a row says of a group's runs beside its baseline's of the same seeds."""
    pairs = [(run, theirs[seed]) for seed, run in own.items() if seed in theirs]
    if any(run.diverged for run, _ in pairs):
        return {"reason": "a seed diverged"}
    if any(base.diverged for _, base in pairs):
        return {"reason": "its baseline: a seed diverged"}
    if not pairs:
        return {"reason": "no seed of the baseline"}
    differences = np.array([run.losses[metric] - base.losses[metric] for run, base in pairs])
    n, mean = len(pairs), float(differences.mean())
    steps = average(steps_to(base.curve[-1][1], run.curve) for run, base in pairs)
    reason = f"{n} of {len(own)} seeds paired" if n < len(own) else None
    found = {"difference": mean, "steps_to_baseline": steps, "reason": reason}
    if n > 1:
        half = half_width(differences.std(ddof=1), n, comparisons=1, share=0.05).item()
        found |= {"low": mean - half, "high": mean + half}
    return found


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return each baseline followed by the groups that are compared with it, the lowest mean first."""
    means = {row.title: math.inf if row.mean is None else row.mean for row in rows}

    def place(row: Row) -> tuple[float, str, bool, float]:
        first = row.baseline or row.title
        return means[first], first, row.baseline is not None, means[row.title]

    return sorted(rows, key=place)


def conclusion(rows: Sequence[Row], metric: str) -> str:
    """Return the sentence that comes first. A group that leaks where the metric is measured has no part in
    it."""
    mode = "training" if metric.startswith("train/") else "evaluation"
    clean = [(row.mean, row) for row in rows if row.mean is not None and mode not in row.leaks]
    runs = sum(len(row.losses) for row in rows)
    counts = f"{plural(runs, 'run')} in {plural(len(rows), 'group')}"
    if not clean:
        return f"{counts}; no group has a mean {named(metric)} that counts: a seed diverged or it leaks."
    mean, lowest = min(clean, key=lambda pair: pair[0])
    beside = ""
    if lowest.difference is not None and lowest.baseline:
        interval = "" if lowest.low is None else f" [{lowest.low:+.4f}, {lowest.high:+.4f}]"
        beside = f", {lowest.difference:+.4f}{interval} from {short(lowest.baseline)}"
    return f"{counts}; lowest mean {named(metric)}: {short(lowest.title)}, {mean:.4f}{beside}."


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def named(metric: str) -> str:
    return "validation loss" if metric == METRIC else metric


def warnings(
    runs: Sequence[Loose], bases: Mapping[str, Sequence[Group]], skipped: Sequence[str]
) -> list[str]:
    lines = [f"the runs differ in {each}" for each in differing([run.result for run in runs])]
    if several := [short(title) for title, groups in bases.items() if len(groups) > 1]:
        lines.append(f"several groups are the baseline of {several[0]}; name one by --baseline KEY=VALUE,…")
    lines += skipped[:MOST_LINES]
    more = len(skipped) - MOST_LINES
    return lines + [f"{plural(more, 'more folder')} skipped"] * (more > 0)


def study_command(groups: Sequence[Group], runs: Sequence[Loose]) -> str:
    """Return a command that declares a study of nearly these arms: all combinations of their values, with the
    words that all runs have in common, and their length and learning rate."""
    values = {key: {value: None} for key, value in BASELINE.items()}
    for key, value in sorted({pair for group in groups for pair in group.keys.items()}):
        if key not in NOT_WORDS and not owner_of(key):
            values.setdefault(key, {})[value] = None
    common = set.intersection(*({*run.overrides} for run in runs)) - {"fresh=true"}
    shared = [word for word in runs[0].overrides if word in common and key_of(word) not in {*values, "seed"}]
    shared += [
        f"{key}={runs[0].keys[key]}"
        for key in SET_BY_NORMS
        if key not in {*values, *map(key_of, shared)} and len({run.keys.get(key) for run in runs}) == 1
    ]
    arms = [f"{key}={','.join(each)}" for key, each in values.items()]
    return shlex.join(["python", "ablate.py", "study=norms", "name=mine", *arms, *shared])


def key_of(word: str) -> str:
    return word.partition("=")[0].lstrip("+")
