"""The files of a study: study.json, chosen.json and extended.json. This file imports neither Hydra nor
torch."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from cli.errors import Config
from cli.schema import Checked
from data.errors import ConfigError
from data.files import first_error, write_atomically

Metric = Literal["val/report_loss", "val/full_loss"]
Settings = dict[str, Any]  # a value of each tuned key
Part = Mapping[str, Any] | None  # the content of chosen.json or extended.json; None: it is not written yet


def moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("it has no time zone")
    return text


class Arm(Checked):
    title: str
    overrides: list[str]
    same_as: list[str]  # titles of arms that are the same model
    group: str  # names of its runs and of those of same_as, without the seed; an edit of code changes them
    trials: list[list[str]]  # names of its trials: a list for each setting, a name for each tuning seed


class Study(Checked):
    """study.json."""

    schema_: Literal[1] = Field(alias="schema")
    name: str
    written: Annotated[str, AfterValidator(moment)]  # ISO time, UTC
    declared: Literal["before its runs", "reconstructed"] = "before its runs"
    git: dict[str, Any] | None
    torch: str
    declared_by: list[str]  # the words of the command
    words: list[str]  # overrides of all runs
    config_dir: str | None
    runs_dir: str  # empty: the study is published, and its runs are in runs.csv beside this file
    precision: str | None  # of all runs; null: arms differ in it
    tokens: str | None  # their fingerprint; null: arms differ in it
    baseline: str  # title of a baseline; ``baseline_of`` finds that of an arm
    by: list[str]
    metric: Metric
    matters: float
    verdicts: bool
    tune: dict[str, str]
    trials: list[Settings]
    trial_seeds: list[int]
    seeds: list[int]
    further_seeds: list[int]
    comparisons: int
    arms: list[Arm]

    @model_validator(mode="after")
    def agrees(self) -> "Study":
        if self.baseline not in [arm.title for arm in self.arms]:
            raise ValueError("the baseline is not one of the arms")
        if any(len(arm.trials) != len(self.trials) for arm in self.arms):
            raise ValueError("an arm has more or fewer trials than the study")
        if self.comparisons < sum(self.baseline_of(arm) is not arm for arm in self.arms):
            raise ValueError("comparisons: it is less than the number of arms that are not baselines")
        return self

    def baseline_of(self, arm: Arm) -> Arm:
        """Return the arm that ``arm`` is compared with: the baseline that has the same values of ``by``. For
        a baseline, return the baseline itself. Raises ConfigError if no baseline fits."""
        baseline = next(each for each in self.arms if each.title == self.baseline)
        wanted = split_by(arm.overrides, self.by)[0], split_by(baseline.overrides, self.by)[1]
        for each in self.arms:
            if split_by(each.overrides, self.by) == wanted:
                return each
        raise ConfigError(f"baseline: {self.baseline} has no arm with {' '.join(wanted[0])}; add it")


class Choice(Checked):
    """An arm's part of chosen.json, which study/trials.py makes."""

    settings: Settings
    trial: int | None = None  # its number
    loss: float | None = None
    half_the_trials: float | None = None
    edges: list[str] = Field([])
    reason: str | None = None
    runs: list[str]


class Chosen(Checked):
    """chosen.json."""

    written: str = ""
    arms: dict[str, Choice]


class Extended(Checked):
    """extended.json."""

    written: str = ""
    seeds: list[int]
    runs: dict[str, list[str]]


PARTS: dict[str, type[Checked]] = {"chosen.json": Chosen, "extended.json": Extended}


def split_by(overrides: Sequence[str], by: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the overrides of the keys ``by``, and the other overrides."""
    own = frozenset(word for word in overrides if word.partition("=")[0].lstrip("+") in by)
    return own, frozenset(overrides) - own


def read(folder: Path) -> Study:
    """Return the study of a folder. Raises OSError and ConfigError."""
    return parsed(folder / "study.json", Study)


def read_part(file: Path) -> dict[str, Any] | None:
    """Return the content of chosen.json or extended.json; None if it is not there. Raises OSError and
    ConfigError."""
    return parsed(file, PARTS[file.name]).model_dump() if file.exists() else None


def choice_of(chosen: Part, title: str) -> Mapping[str, Any]:
    """Return an arm's part of chosen.json; {} if it is not written yet."""
    return chosen["arms"].get(title, {}) if chosen else {}


def parsed(file: Path, kind: type[Config]) -> Config:
    """Return the content of a file. Raises OSError; ConfigError if it is damaged or of another version."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except ValidationError as error:
        advice = "restore it, or declare the study under a new name: name=…"
        raise ConfigError(f"{file}: is damaged ({first_error(error)}); {advice}") from None


def write_once(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file completely or not at all, even if the power fails. Raises FileExistsError if it
    exists."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    write_atomically(new, json.dumps(content, indent=1), sync=True)
    try:
        os.link(new, file)
    finally:
        new.unlink()
