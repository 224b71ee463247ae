"""Declare a study: conf/study/NAME.yaml and the command line become study.json, before the first run.

A word whose key is in TYPED sets a key of the study. Every other word is an override of train.py for all
runs; if it has several values, each value makes an arm.
"""

import hashlib
import importlib.metadata
import itertools
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import BeforeValidator, Field

from cli.compose import alternatives, arguments_for_hydra, compose_all, composing, key_of
from cli.errors import CONF, checked, known_keys, no_such_choice, unknown_key
from cli.schema import Checked, Count, Float, GivenPath, RunConfig, number_as_text
from data.errors import ConfigError
from data.files import digest
from study.files import Arm, Metric, Settings, Study, read, split_by, write_once
from study.launch import AUTO_ON_A_CLUSTER, Job
from study.trials import draw, replaced
from training.environment import ROOT, git_state
from training.identity import folder_of, group_name, identity
from training.open_run import tokens_of

Words = list[str]
Text = Annotated[str, BeforeValidator(number_as_text)]
MAY_DIFFER = {
    "written",
    "git",
    "torch",
    "declared_by",
    "words",
}  # keys of study.json that may differ when the study is declared again


class Asked(Checked):
    """The keys of a study, from its file and the command line. Only the file may set grid, also and runs."""

    study: str
    name: Text | None = None  # of the study's folder; null: the name of its file
    studies_dir: GivenPath = "studies"
    grid: dict[str, Text] = Field({})  # key -> values, as on a command line; each combination is an arm
    also: list[str] = Field([])  # further arms: the overrides of each
    runs: str = ""  # overrides of all runs
    baseline: str = "norm=layernorm placement=pre"  # words of the baseline
    by: list[str] | str = Field([])  # each value of these keys has its own baseline
    seeds: Count = 5  # number of seeds on which arms are compared
    tune: dict[str, Text] | None = None  # key -> range, as study/trials.py reads it
    trials: Count = 16  # number of settings that each arm tries
    trial_seeds: Count = 2  # number of seeds on which the best settings are tried
    metric: Metric | None = None  # null: val/report_loss if tuned, else val/full_loss
    matters: Annotated[Float, Field(ge=0)] = 0.01  # nats: smaller differences do not matter
    verdicts: bool = True
    # not in study.json: they may change when the study resumes
    n_jobs: Count | None = None  # runs at once; null: one per GPU, or one per core without GPUs
    launcher: Literal["processes", "slurm"] = "processes"
    slurm: dict[str, Any] = Field({})  # options of conf/hydra/launcher/slurm.yaml
    extend: bool = False  # also train the further seeds

    @property
    def folder(self) -> Path:
        return Path(self.studies_dir, self.name or self.study)


TYPED = Asked.model_fields.keys() - {"grid", "also", "runs"}  # what a command line may set
NOT_DECLARED = {"extend", "n_jobs", "launcher", "slurm"}
# not read as YAML: name=2026-11-29 is a text, not a date
LITERAL = {"study", "name", "studies_dir", "baseline"}


# ---------------------------------------------------------------------------------------------------
# The words


def read_words(words: Sequence[str]) -> tuple[Asked, Words, str | None]:
    """Return the keys of the study, the overrides of all runs, and the folder of --config-dir. Raises
    ConfigError."""
    words, config_dir = arguments_for_hydra(words), None
    if words[:1] in (["--config-dir"], ["-cd"]):
        config_dir, words = str(Path(words[1]).resolve()), words[2:]
        os.stat(config_dir)  # Hydra would only warn
    typed: dict[str, Any] = {}
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            raise ConfigError(f"{word}: ablate.py has no such option; --help lists its options")
        if not equals and key[:1] != "~":
            raise ConfigError(f"{word}: has no value; write KEY=VALUE, such as norm=layernorm,rmsnorm")
        if key in TYPED:
            typed[key] = value if key in LITERAL else read_yaml(key, value)
        elif key_of(word) == "seed":
            raise ConfigError("seed: a study draws its own seeds; give their number, as seeds=5")
        elif key == "fresh":
            raise ConfigError("fresh: a study trains each run once; declare another one: name=…")
        elif "." not in key and key[:1] not in "+~" and key not in {*RunConfig.model_fields, "experiment"}:
            raise ConfigError(unknown_key(key, [*TYPED, *known_keys()]))
        else:
            overrides.append(word)
    asked = checked(Asked, preset(typed.get("study"), config_dir) | typed)
    if "/" in (asked.name or ""):
        raise ConfigError("name: must not contain /; studies_dir= sets the folder of the study")
    fixed = {key_of(word) for word in overrides}  # a key that the user sets is not tuned
    tune = {key: text for key, text in (asked.tune or {}).items() if key not in fixed}
    by = [asked.by] if isinstance(asked.by, str) else asked.by
    return asked.model_copy(update={"tune": tune, "by": by}), overrides, config_dir


def preset(study: str | None, config_dir: str | None) -> dict[str, Any]:
    """Return the content of a study's file. Raises ConfigError."""
    folders = [Path(folder, "study") for folder in (CONF, config_dir) if folder]
    files = {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}
    if study is None:
        raise ConfigError(f"study: give one, such as study=norms; all: {', '.join(sorted(files))}")
    if study not in files:
        raise ConfigError(no_such_choice("study", study, sorted(files)))
    content = yaml.safe_load(files[study].read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(f"{files[study]}: has no keys; write grid: or also:, as in conf/study/norms.yaml")
    return content


def read_yaml(key: str, text: str) -> Any:
    """Return the value of a typed key. Raises ConfigError."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigError(f"{key}: {text!r} cannot be read as YAML: {why}; correct it") from None


def words_and_arms(asked: Asked, typed: Words, parser: OverridesParser) -> tuple[Words, list[Words]]:
    """Return the overrides of all runs, and the overrides of each arm. The arms of ``also`` are left out if
    the user sets a key of the grid, or gives several values to a key of these arms. Raises ConfigError."""

    def read(words: Words) -> dict[str, Words]:
        return alternatives(parser.parse_overrides(words))

    given, presets = read(typed), read(shlex.split(asked.runs, posix=False))
    grid = read([f"{key}={values}" for key, values in asked.grid.items()])
    also = [read(shlex.split(line, posix=False)) for line in asked.also]
    added = {key: words for key, words in given.items() if len(words) > 1 and key not in grid}
    if given.keys() & grid.keys() or added.keys() & {key for arm in also for key in arm}:
        also = []
    keys_of_also = {key for arm in also for key in arm}
    if fixed := [key for key in given if key in keys_of_also - grid.keys()]:
        several = f"give several values, {fixed[0]}=a,b, to get an arm for each"
        raise ConfigError(f"{fixed[0]}: the study's arms set it; {several}")
    if tuned := {*(asked.tune or ())} & {*grid, *keys_of_also}:
        raise ConfigError(f"tune: the arms differ in {min(tuned)}; tune other keys")
    axes = grid | {key: words for key, words in given.items() if key in grid}
    arms = [*itertools.product(*axes.values())] if axes else []
    arms += [tuple(word for words in arm.values() for word in words) for arm in also]
    arms = [(*arm, *more) for arm in arms or [()] for more in itertools.product(*added.values())]
    shared = {key: words for key, words in (presets | given).items() if key not in {*grid, *added}}
    return [word for words in shared.values() for word in words], [[*arm] for arm in dict.fromkeys(arms)]


# ---------------------------------------------------------------------------------------------------
# The arms


@dataclass(frozen=True)
class ComposedArm:
    """An arm that may turn out to be the same model as another one."""

    title: str
    overrides: Words
    config: RunConfig
    tokens: str  # their fingerprint
    precision: str  # possibly auto, until the arm has been tried

    def resolved(self, precision: str | None) -> "ComposedArm":
        """Return the arm with ``precision`` in place of auto."""
        return replace(self, precision=precision or "fp32") if self.precision == "auto" else self

    def run(self, settings: Settings, seed: int) -> str:
        """Return the name of the run with these settings and this seed."""
        return folder_of(replaced(self.config, settings, seed), self.precision, self.tokens).name

    def group(self) -> str:
        return group_name(self.config, self.precision, self.tokens)

    def other_settings(self) -> str:
        """Return a digest of all settings of its runs except those of the model."""
        parts = identity(self.config, self.precision, self.tokens)
        names = parts.keys() - {"model", "norm", "placement", "source"}
        return digest({name: parts[name] for name in names})


def composed_arms(overrides: Sequence[Words], configs: Sequence[RunConfig]) -> list[ComposedArm]:
    """Return the arms with their titles and tokens. Tokens that the cache lacks are prepared now. Arms with
    the same title become one arm: they differ only in that one of them names a default."""
    labels = [config.label() for config in configs]
    known: dict[Any, str] = {}
    found: dict[str, ComposedArm] = {}
    for label, words, config in zip(labels, overrides, configs, strict=True):
        # if arms have the same label, their titles also have the overrides in which they differ
        alike = [{*other} for name, other in zip(labels, overrides, strict=True) if name == label]
        shared = set.intersection(*alike) | {*label.split()}
        title = " ".join([label, *(word for word in words if word not in shared)])
        if (key := (config.data, config.init_from)) not in known:
            known[key] = tokens_of(config).fingerprint
        found.setdefault(title, ComposedArm(title, words, config, known[key], config.precision))
    return [*found.values()]


def baseline_titles(asked: Asked, shared: Words, arms: Sequence[ComposedArm]) -> Words:
    """Return the titles of the baselines, one for each value of ``by``: the arm that has all words of
    ``asked.baseline`` and the fewest others. Raises ConfigError."""
    keys = dict.fromkeys(key_of(word) for arm in arms for word in arm.overrides)
    if unknown := [key for key in asked.by if key not in keys]:
        raise ConfigError(f"by: arms do not differ in {unknown[0]}; choose from {', '.join(keys)}")
    wanted = {word for word in asked.baseline.split() if key_of(word) not in asked.by} - {*shared}
    found: dict[frozenset[str], str] = {}
    for arm in sorted(arms, key=lambda arm: len(arm.title.split())):
        if wanted <= {*arm.title.split(), *arm.overrides}:
            found.setdefault(split_by(arm.overrides, asked.by)[0], arm.title)
    if not found:
        raise ConfigError(f"baseline: no arm is {asked.baseline}; add it, or give baseline='{arms[0].title}'")
    return [arm.title for arm in arms if arm.title in found.values()]


def try_arms(arms: Sequence[ComposedArm]) -> list[dict[str, Any]]:
    """Build every arm once with training/try_arms.py, and return an answer for each. A child process does
    this, because this process does not import torch. Raises ConfigError for an arm that cannot run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [sys.executable, "-P", "-m", "training.try_arms"],
        input=json.dumps([arm.config.model_dump(by_alias=True) for arm in arms]),
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # so that Ctrl-C reaches only this process, which then ends the child
    )
    if child.returncode:
        raise ConfigError(f"arms: building them failed with status {child.returncode}; train one to see why")
    answers: list[dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    for arm, answer in zip(arms, answers, strict=True):
        if line := answer.get("error"):
            raise ConfigError(line if line.startswith(arm.config.label()) else f"{arm.title}: {line}")
    return answers


def same_models(
    arms: Sequence[ComposedArm], answers: Sequence[Mapping[str, Any]], asked: Asked, baselines: Words
) -> dict[str, str]:
    """Return, for each arm that duplicates another one, the title of the arm that is kept: a baseline, or
    otherwise the first. Two arms are duplicates if they are the same model with the same other settings, or
    if their runs have the same names. The latter happens, for example, if the arms differ only in threads,
    which may change the last digits."""
    kept: dict[Any, str] = {}
    same: dict[str, str] = {}
    pairs = sorted(zip(arms, answers, strict=True), key=lambda pair: pair[0].title not in baselines)
    for arm, answer in pairs:
        by, _ = split_by(arm.overrides, asked.by)
        model = answer["digest"], answer["parameters"], arm.other_settings()
        keys = (arm.run({}, 0), by), (model, by)
        title = next((kept[key] for key in keys if key in kept), arm.title)
        kept |= dict.fromkeys(keys, title)
        if title != arm.title:
            same[arm.title] = title
    return same


# ---------------------------------------------------------------------------------------------------
# The study


@dataclass(frozen=True)
class Declared:
    """A study, what was asked for, and its arms by title."""

    study: Study
    asked: Asked
    arms: dict[str, ComposedArm]

    @property
    def folder(self) -> Path:
        return self.asked.folder

    def compared_names(self, choices: Mapping[str, Any], seeds: list[int]) -> dict[str, Words]:
        """Return, by title, the names of each arm's runs on these seeds at its chosen settings. An arm
        without usable settings has no runs. ``choices``: the arms of chosen.json."""
        return {
            title: [self.arms[title].run(choice["settings"], seed) for seed in seeds if not choice["reason"]]
            for title, choice in choices.items()
        }


def declare(words: Sequence[str], write: bool = True) -> Declared:
    """Return the study that a command line declares. If study.json exists, it must declare the same study;
    otherwise it is written, if ``write``.

    Raises:
        UserError: a word is wrong, an arm cannot run, or study.json declares another study.
    """
    asked, typed, config_dir = read_words(words)
    file = asked.folder / "study.json"
    old = read(asked.folder) if file.exists() else None
    with composing(config_dir) as parser:
        shared, overrides = words_and_arms(asked, typed, parser)
        if not old:
            print(f"{asked.folder}: {len(overrides)} arms; each is built once, to try it", flush=True)
        arms = composed_arms(overrides, compose_all([[*shared, *arm] for arm in overrides]))
    baselines = baseline_titles(asked, shared, arms)
    if old:  # arms are not tried again: on another machine, auto may become another precision
        arms = [arm.resolved(old.precision) for arm in arms]
        same = {title: arm.title for arm in old.arms for title in arm.same_as}
    else:
        if asked.launcher == "slurm" and any(arm.precision == "auto" for arm in arms):
            raise ConfigError(AUTO_ON_A_CLUSTER)
        answers = try_arms(arms)
        arms = [arm.resolved(answer["precision"]) for arm, answer in zip(arms, answers, strict=True)]
        same = same_models(arms, answers, asked, baselines)
    declared_by = [word for word in words if key_of(word) not in NOT_DECLARED]
    command = {"declared_by": declared_by, "words": shared, "config_dir": config_dir}
    study = study_of(asked, arms, same, baselines, **command)
    if write and not old:
        asked.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another command was faster
            write_once(file, study.model_dump(by_alias=True))
        old = read(asked.folder)
    if old and (change := difference(old, study)):
        raise ConfigError(f"{asked.folder}: was declared with {change}; give this study a new name: name=…")
    # words that do not change a run, such as wandb.mode=offline, may differ when the study resumes
    study = (old or study).model_copy(update={"words": study.words})
    return Declared(study, asked, {arm.title: arm for arm in arms})


def study_of(
    asked: Asked, arms: Sequence[ComposedArm], same: Mapping[str, str], baselines: Words, **command: Any
) -> Study:
    """Return the study of these arms, without the duplicates in ``same``."""
    trials = draw(asked.tune, asked.trials) if asked.tune else []
    trial_seeds = [*range(asked.trial_seeds)] if trials else []
    seeds = own_seeds(asked.folder.name, 2 * asked.seeds, asked.trial_seeds)
    twins = {arm.title: [other for other in arms if same.get(other.title) == arm.title] for arm in arms}
    declared = [
        Arm(
            title=arm.title,
            overrides=arm.overrides,
            same_as=[twin.title for twin in twins[arm.title]],
            group=" ".join(each.group() for each in (arm, *twins[arm.title])),
            trials=[[arm.run(settings, seed) for seed in trial_seeds] for settings in trials],
        )
        for arm in arms
        if arm.title not in same
    ]
    if any(len({names[0] for names in arm.trials}) < len(trials) for arm in declared):
        raise ConfigError(
            f"tune: {' '.join(asked.tune or ())}: one of these keys changes no run; leave it out"
        )
    return Study(
        schema_=1,
        name=asked.folder.name,
        written=now(),
        git=git_state(),
        torch=importlib.metadata.version("torch"),
        runs_dir=arms[0].config.runs_dir,
        precision=the_only([arm.precision for arm in arms]),
        tokens=the_only([arm.tokens for arm in arms]),
        baseline=baselines[0],
        metric=asked.metric or ("val/report_loss" if trials else "val/full_loss"),
        trials=trials,
        trial_seeds=trial_seeds,
        seeds=seeds[: asked.seeds],
        further_seeds=seeds[asked.seeds :],
        comparisons=len(declared) - len(baselines),
        arms=declared,
        **asked.model_dump(include={"by", "matters", "verdicts", "tune"}),
        **command,
    )


def own_seeds(name: str, count: int, first: int) -> list[int]:
    """Return ``count`` seeds, drawn at random from the study's name. They are at least ``first``, because
    smaller numbers are the tuning seeds."""
    return random.Random(hashlib.sha256(name.encode()).hexdigest()).sample(range(first, 2**31), count)


def the_only(values: Words) -> str | None:
    return values[0] if len({*values}) == 1 else None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def difference(old: Study, new: Study) -> str | None:
    """Return what differs between two declarations; None if they are the same."""
    declared = [key for key in Study.model_fields if key not in MAY_DIFFER]
    changed = [key for key in declared if getattr(old, key) != getattr(new, key)]
    words = [word for word in (*old.words, *new.words) if (word in old.words) != (word in new.words)]
    if not changed:
        return None
    if words:
        return f"another {key_of(words[0])}"
    if [arm.title for arm in old.arms] != [arm.title for arm in new.arms]:
        return "other arms"
    if changed != ["arms"]:
        return f"other values of {changed[0]}"
    edited = next(before for before, after in zip(old.arms, new.arms, strict=True) if before != after)
    return f"another {edited.title}: its options or its code were edited since"


# ---------------------------------------------------------------------------------------------------
# The runs


def job(study: Study, arm: Arm, settings: Settings, seed: int, name: str) -> Job:
    """Return the job of an arm's run. Its precision is the study's, because auto may become another one
    here."""
    words = [word for word in study.words if not (study.precision and word.startswith("precision="))]
    precision = [f"precision={study.precision}"] if study.precision else []
    values = [f"{key}={value}" for key, value in settings.items()]
    return Job(name, (*words, *precision, *arm.overrides, *values, f"seed={seed}"))


def trial_jobs(study: Study, which: Mapping[str, Sequence[int]] | None = None) -> list[Job]:
    """Return the trials of every setting on the first tuning seed. If ``which`` is given (numbers of settings
    by title), return the trials of these settings on the other tuning seeds."""
    seeds = [*enumerate(study.trial_seeds)]
    return [
        job(study, arm, study.trials[number], seed, arm.trials[number][i])
        for arm in study.arms
        for number in (range(len(study.trials)) if which is None else which[arm.title])
        for i, seed in (seeds[:1] if which is None else seeds[1:])
    ]


def compared_jobs(
    study: Study, chosen: Mapping[str, Any], names: Mapping[str, Words], seeds: list[int]
) -> list[Job]:
    """Return the runs with these names on these seeds; ``chosen`` is the content of chosen.json."""
    return [
        job(study, arm, chosen["arms"][arm.title]["settings"], seed, names[arm.title][i])
        for i, seed in enumerate(seeds)
        for arm in study.arms
        if names[arm.title]
    ]
