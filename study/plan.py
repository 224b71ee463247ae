"""Declare a study: conf/study/NAME.yaml and the command line become study.json, before the first run.

A word whose key is one of TYPED is the study's. Every other word is an override of all runs, as train.py
takes it; one with several values makes arms.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import hydra
import yaml
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import BeforeValidator, Field

from cli.compose import alternatives, arguments_for_hydra, compose_all, key_of
from cli.errors import CONF, checked, known_keys, no_such_choice, unknown_key
from cli.schema import Checked, Count, Float, GivenPath, RunConfig, number_as_text
from data.errors import ConfigError
from data.files import digest
from study.files import Arm, Metric, Settings, Study, read, split_by, write_once
from study.launch import Job
from study.trials import draw, replaced
from training.environment import ROOT, git_state
from training.identity import folder_of, group_name, identity
from training.open_run import tokens_of

Words = list[str]
Text = Annotated[str, BeforeValidator(number_as_text)]
HOW_DECLARED = {"written", "git", "torch", "declared_by", "words"}  # these may differ


class Asked(Checked):
    """What a study's file and the command line ask for. Only a file has grid, also and runs."""

    study: str
    name: Text | None = None  # of the study's folder; null: that of its file
    studies_dir: GivenPath = "studies"
    grid: dict[str, Text] = Field({})  # key -> values, as on a command line; each combination is an arm
    also: list[str] = Field([])  # further arms: the overrides of each
    runs: str = ""  # overrides of all runs
    baseline: str = "norm=layernorm placement=pre"  # words that it has, of each value of ``by``
    by: list[str] | str = Field([])
    seeds: Count = 5  # how many each arm is compared on
    tune: dict[str, Text] | None = None  # key -> range, as study/trials.py reads it
    trials: Count = 16  # settings that are drawn
    trial_seeds: Count = 2
    metric: Metric | None = None  # null: val/report_loss if tuned, else val/full_loss
    matters: Annotated[Float, Field(ge=0)] = 0.01  # nats: a smaller difference is none
    verdicts: bool = True
    # how it is run: these are not in study.json
    n_jobs: Count | None = None  # runs at once; null: as many as there are GPUs, or else cores
    launcher: Literal["processes", "slurm"] = "processes"
    slurm: dict[str, Any] = Field({})  # options of conf/hydra/launcher/slurm.yaml
    extend: bool = False  # once: as many further seeds

    @property
    def folder(self) -> Path:
        return Path(self.studies_dir, self.name or self.study)


HOW = ("extend", "n_jobs", "launcher", "slurm", "--dry-run")  # words that declare nothing
TYPED = Asked.model_fields.keys() - {"grid", "also", "runs"}  # keys of the study on a command line
LITERAL = {"study", "name", "studies_dir", "baseline"}  # letter by letter: name=2026-11-29 is no date


# ---------------------------------------------------------------------------------------------------
# The words


def read_words(words: Sequence[str]) -> tuple[Asked, Words, str | None]:
    """Return what is asked of the study, the overrides of all runs, and the folder of --config-dir. Raises
    ConfigError."""
    words = arguments_for_hydra([word for word in words if word not in ("-m", "--multirun")])
    config_dir = None
    if words[:1] in (["--config-dir"], ["-cd"]):
        config_dir, words = str(Path(words[1]).resolve()), words[2:]
        os.stat(config_dir)  # Hydra would only warn
    typed: dict[str, Any] = {}
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            raise ConfigError(f"{word}: ablate.py has no such option; --help lists what it has")
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
        raise ConfigError("name: is one word without /; studies_dir= says where the study is")
    fixed = {key_of(word) for word in overrides}  # a typed value is not tuned
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
        raise ConfigError(f"{files[study]}: says nothing; write grid: or also:, as conf/study/norms.yaml")
    return content


def read_yaml(key: str, text: str) -> Any:
    """Return the value of a typed key. Raises ConfigError."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigError(f"{key}: {text!r} cannot be read as YAML: {why}; correct it") from None


@contextmanager
def composing(config_dir: str | None) -> Iterator[OverridesParser]:
    """Context manager in which configs can be composed. Yield a parser; its glob(*) finds the choices of the
    user's folder, too."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        if config_dir:
            folders = loader.get_search_path()
            folders.prepend("command-line", f"file://{config_dir}", anchor=SearchPathQuery(provider="schema"))
            loader.repository.initialize_sources(folders)  # type: ignore[attr-defined]
        yield OverridesParser.create(loader)


def words_and_arms(asked: Asked, typed: Words, parser: OverridesParser) -> tuple[Words, list[Words]]:
    """Return the overrides of all runs, and those of each arm. A typed key of the grid replaces the file's,
    and the arms that the file names beside its grid are left out: other arms were asked for. Raises
    ConfigError."""

    def read(words: Words) -> dict[str, Words]:
        return alternatives(parser.parse_overrides(words))

    given, presets = read(typed), read(shlex.split(asked.runs, posix=False))
    grid = read([f"{key}={values}" for key, values in asked.grid.items()])
    named = [read(shlex.split(line, posix=False)) for line in asked.also]
    further = {key: words for key, words in given.items() if len(words) > 1 and key not in grid}
    if given.keys() & grid.keys() or further.keys() & {key for arm in named for key in arm}:
        named = []
    in_arms = {*grid, *(key for arm in named for key in arm)}
    if kept := [key for key in given if key in in_arms and key not in grid]:
        several = f"give several values, {kept[0]}=a,b: these are arms"
        raise ConfigError(f"{kept[0]}: the study's arms set it; {several}")
    if tuned := {*(asked.tune or ())} & in_arms:
        raise ConfigError(f"tune: {min(tuned)} is what arms differ in; tune other keys")
    axes = grid | {key: words for key, words in given.items() if key in grid}
    arms = [*itertools.product(*axes.values())] if axes else []
    arms += [tuple(word for words in arm.values() for word in words) for arm in named]
    arms = [(*arm, *more) for arm in arms or [()] for more in itertools.product(*further.values())]
    shared = {key: words for key, words in (presets | given).items() if key not in {*grid, *further}}
    return [word for words in shared.values() for word in words], [[*arm] for arm in dict.fromkeys(arms)]


# ---------------------------------------------------------------------------------------------------
# The arms


@dataclass(frozen=True)
class Candidate:
    """An arm before it is known whether another one is the same model."""

    title: str
    overrides: Words
    config: RunConfig
    tokens: str  # their fingerprint
    precision: str  # possibly auto, until the arm has been tried

    def resolved(self, precision: str | None) -> "Candidate":
        """Return the arm with this precision in place of auto."""
        return replace(self, precision=precision or "fp32") if self.precision == "auto" else self

    def run(self, settings: Settings, seed: int) -> str:
        """Return the name of the run with these settings and this seed."""
        return folder_of(replaced(self.config, settings, seed), self.precision, self.tokens).name

    def group(self) -> str:
        return group_name(self.config, self.precision, self.tokens)

    def other_settings(self) -> str:
        """Return a digest of what a run's identity has beside the model."""
        parts = identity(self.config, self.precision, self.tokens)
        names = parts.keys() - {"model", "norm", "placement", "source"}
        return digest({name: parts[name] for name in names})


def candidates(overrides: Sequence[Words], configs: Sequence[RunConfig]) -> list[Candidate]:
    """Return the arms with their titles and tokens, which are prepared now if the cache lacks them. Arms that
    differ only in a default that one of them names are one."""
    labels = [config.label() for config in configs]
    known: dict[Any, str] = {}
    found: dict[str, Candidate] = {}
    for label, words, config in zip(labels, overrides, configs, strict=True):
        # arms of the same label differ in some overrides, which the title has, too
        alike = [{*other} for name, other in zip(labels, overrides, strict=True) if name == label]
        shared = set.intersection(*alike) | {*label.split()}
        title = " ".join([label, *(word for word in words if word not in shared)])
        if (key := (config.data, config.init_from)) not in known:
            known[key] = tokens_of(config).fingerprint
        found.setdefault(title, Candidate(title, words, config, known[key], config.precision))
    return [*found.values()]


def find_baselines(asked: Asked, shared: Words, arms: Sequence[Candidate]) -> Words:
    """Return the title of the baseline of each value of ``by``: the arm that has all words of
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


def try_arms(arms: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Build every arm once, in a child, as this process does not import torch: training/try_arms.py. Raises
    ConfigError for an arm that cannot run."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [sys.executable, "-P", "-m", "training.try_arms"],
        input=json.dumps([arm.config.model_dump(by_alias=True) for arm in arms]),
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for this process, which ends the child: two would print a traceback
    )
    if child.returncode:
        raise ConfigError(f"arms: trying them ended with status {child.returncode}; train one to see why")
    answers: list[dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    for arm, answer in zip(arms, answers, strict=True):
        if line := answer.get("error"):
            raise ConfigError(line if line.startswith(arm.config.label()) else f"{arm.title}: {line}")
    return answers


def same_models(
    arms: Sequence[Candidate], answers: Sequence[Mapping[str, Any]], asked: Asked, baselines: Words
) -> dict[str, str]:
    """Return a title for each arm that is the same model as another arm, with the same other settings: that
    of the other arm, which is the baseline or else the first of them.

    Arms that differ in device or threads alone are the same, even if their outputs differ: their runs have
    the same names."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    pairs = sorted(zip(arms, answers, strict=True), key=lambda pair: pair[0].title not in baselines)
    for arm, answer in pairs:
        by, _ = split_by(arm.overrides, asked.by)
        model = answer["digest"], answer["parameters"], arm.other_settings()
        kept = first.setdefault((arm.run({}, 0), by), first.get((model, by), arm.title))
        first.setdefault((model, by), kept)
        if kept != arm.title:
            same[arm.title] = kept
    return same


# ---------------------------------------------------------------------------------------------------
# The study


@dataclass(frozen=True)
class Declared:
    """A study with the configs of its arms, by title."""

    study: Study
    folder: Path
    arms: dict[str, Candidate]

    def compared_names(self, choices: Mapping[str, Any], seeds: list[int]) -> dict[str, Words]:
        """Return the names of each arm's runs on these seeds at its chosen settings, by title; none for an
        arm that has no usable ones. ``choices``: the arms of chosen.json."""
        return {
            title: [self.arms[title].run(choice["settings"], seed) for seed in seeds if not choice["reason"]]
            for title, choice in choices.items()
        }


def declare(words: Sequence[str], write: bool = True) -> Declared:
    """Return the study that a command line declares. study.json is written; if it is there, it has to say the
    same.

    Raises:
        UserError: a word is wrong, an arm cannot run, or the study that is there is another one.
    """
    asked, typed, config_dir = read_words(words)
    file = asked.folder / "study.json"
    old = read(asked.folder) if file.exists() else None
    with composing(config_dir) as parser:
        shared, overrides = words_and_arms(asked, typed, parser)
        if not old:
            print(f"{asked.folder}: {len(overrides)} arms; each is built once, to try it", flush=True)
        arms = candidates(overrides, compose_all([[*shared, *arm] for arm in overrides]))
    baselines = find_baselines(asked, shared, arms)
    if old:  # not tried again: on another machine, auto may become another precision
        arms = [arm.resolved(old.precision) for arm in arms]
        same = {title: arm.title for arm in old.arms for title in arm.same_as}
    else:
        answers = try_arms(arms)
        arms = [arm.resolved(answer["precision"]) for arm, answer in zip(arms, answers, strict=True)]
        same = same_models(arms, answers, asked, baselines)
    declared_by = [word for word in words if key_of(word) not in HOW]
    study = study_of(asked, shared, config_dir, declared_by, arms, same, baselines)
    if write and not old:
        asked.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another command was faster
            write_once(file, study.model_dump(by_alias=True))
        old = read(asked.folder)
    if old and (change := difference(old, study)):
        raise ConfigError(f"{asked.folder}: the study has {change}; give it a new name: name=…")
    # a word such as wandb.mode=offline may change when the study goes on
    study = (old or study).model_copy(update={"words": study.words})
    return Declared(study, asked.folder, {arm.title: arm for arm in arms})


def study_of(
    asked: Asked,
    shared: Words,
    config_dir: str | None,
    declared_by: Words,
    arms: Sequence[Candidate],
    same: Mapping[str, str],
    baselines: Words,
) -> Study:
    """Return the study of these arms, of which those in ``same`` are the same models as others."""
    trials = draw(asked.tune, asked.trials) if asked.tune else []
    trial_seeds = [*range(asked.trial_seeds)] if trials else []
    seeds = seeds_of(asked.folder.name, 2 * asked.seeds, asked.trial_seeds)
    kept = {arm.title: [other for other in arms if same.get(other.title) == arm.title] for arm in arms}
    declared = [
        Arm(
            title=arm.title,
            overrides=arm.overrides,
            same_as=[other.title for other in kept[arm.title]],
            group=" ".join(each.group() for each in (arm, *kept[arm.title])),
            trials=[[arm.run(settings, seed) for seed in trial_seeds] for settings in trials],
        )
        for arm in arms
        if arm.title not in same
    ]
    return Study(
        schema_=1,
        name=asked.folder.name,
        written=now(),
        git=git_state(),
        torch=importlib.metadata.version("torch"),
        declared_by=declared_by,
        words=shared,
        config_dir=config_dir,
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
    )


def seeds_of(name: str, count: int, first: int) -> list[int]:
    """Return a study's own seeds, drawn by its name from ``first`` on: those below are the tuning seeds."""
    return random.Random(hashlib.sha256(name.encode()).hexdigest()).sample(range(first, 2**31), count)


def the_only(values: Words) -> str | None:
    return values[0] if len({*values}) == 1 else None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def difference(old: Study, new: Study) -> str | None:
    """Return what differs between two declarations; None if they are the same."""
    declared = [key for key in Study.model_fields if key not in HOW_DECLARED]
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
    words = [word for word in study.words if not (study.precision and word.startswith("precision="))]
    precision = [f"precision={study.precision}"] if study.precision else []
    values = [f"{key}={value}" for key, value in settings.items()]
    return Job(name, (*words, *precision, *arm.overrides, *values, f"seed={seed}"))


def trial_jobs(study: Study, which: Mapping[str, Sequence[int]] | None = None) -> list[Job]:
    """Return the trials: of every setting on the first tuning seed; or on the others, of those settings whose
    numbers ``which`` gives for each title."""
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
