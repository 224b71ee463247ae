"""A finding: a published claim, the conditions under which it is measured, and what would confirm it.

A finding is a YAML in conf/finding, or in the folder ``finding`` of a --config-dir; the YAML's keys are the
attributes of ``Finding``. Reading findings does not import torch.
"""

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import Field, model_validator

from cli.errors import CONF, checked
from cli.schema import Checked
from data.errors import ConfigError

Scalar = bool | int | float | str | None
Overrides = dict[str, Scalar]  # key of train.py -> value
MIN_SEEDS = 3  # for a verdict
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=MIN_SEEDS)]


def override(key: str, value: Scalar) -> str:
    """Return ``key=value`` as the user types it."""
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


class Interval(NamedTuple):
    """The interval of the mean of n numbers. For n = 1, low and high are NaN."""

    n: int
    mean: float
    low: float
    high: float


class Expected(Checked):
    """The range in which the mean of a quantity should lie. An end that is not given is infinite. If only one
    end is given, the range excludes that end, since a tie confirms no direction; if both are given, the range
    includes both, so a quantity that must be 0 is expected from 0 to 0."""

    above: float = -math.inf
    below: float = math.inf
    why: str  # the source of the ends; for a condition, what an unfulfilled condition means

    @model_validator(mode="after")
    def has_a_range(self) -> Self:
        if self.above == -math.inf and self.below == math.inf:
            raise ValueError("above: neither above nor below is given, so nothing could fail; give one")
        if self.above > self.below:
            raise ValueError(f"above: {self.above} is greater than below={self.below}")
        return self

    def __str__(self) -> str:
        if not self.closed:
            return f"above {self.above:g}" if math.isfinite(self.above) else f"below {self.below:g}"
        return f"{self.above:g}" if self.above == self.below else f"{self.above:g} to {self.below:g}"

    @property
    def closed(self) -> bool:
        return math.isfinite(self.above) and math.isfinite(self.below)

    def holds(self, interval: Interval) -> bool:
        """Return True if the whole interval lies in the range."""
        if self.closed:
            return self.above <= interval.low and interval.high <= self.below
        return self.above < interval.low and interval.high < self.below

    def excludes(self, interval: Interval) -> bool:
        """Return True if no part of the interval lies in the range."""
        if self.closed:
            return interval.high < self.above or self.below < interval.low
        return interval.high <= self.above or self.below <= interval.low


class Control(Checked):
    """The same measurement under conditions in which the claim should fail. Overrides of the control replace
    those of the finding; arms that the control does not name stay as they are."""

    what: str  # what the control does wrong, in words
    all: Overrides = Field(default_factory=dict)
    arms: dict[str, Overrides] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class Picture(Checked):
    """Titles and scales of the picture's axes."""

    x: str
    y: str
    x_scale: Literal["linear", "log", "names"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    mark: Literal["line", "point"] = "line"


class Finding(Checked):
    """A claim, and how it is measured."""

    claim: str  # one sentence
    source: str  # paper, arXiv number, section
    numbers: str  # the source's numbers, and how well the source was checked
    # How the numbers were obtained; "ours": no source published them.
    read: Literal["here", "second hand", "memory", "ours"]
    size: str  # the model, the text and the length of training, in words
    minutes: Annotated[float, Field(gt=0, le=40)]  # on two cores
    trains: bool  # False: models are measured as initialised
    # Overrides of train.py: for all models, for each arm, and over several values of one key in every arm.
    all: Overrides = Field(default_factory=dict)
    arms: Annotated[dict[str, Overrides], Field(min_length=1)]
    over: Annotated[dict[str, list[Scalar]], Field(max_length=1)] = Field(default_factory=dict)
    seeds: Seeds  # of the models that are measured; arms are paired by seed
    # Seeds whose models choose each arm's best value of the varied key; nothing else is measured on them.
    tuning_seeds: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    measure: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]  # the measuring function
    options: dict[str, Any] = Field(default_factory=dict)  # the function's keyword arguments
    expected: Annotated[dict[str, Expected], Field(min_length=1)]  # by quantity; the claim holds if all hold
    inconclusive: dict[str, Expected] = Field(default_factory=dict)  # conditions that a verdict requires
    # What the likely reason for an unexpected result predicts; it does not affect the verdict.
    because: dict[str, Expected] = Field(default_factory=dict)
    control: Control
    picture: Picture
    remark: str

    @model_validator(mode="after")
    def control_names_known_arms(self) -> Self:
        if unknown := self.control.arms.keys() - self.arms.keys():
            names = ", ".join(self.arms)
            raise ValueError(f"control.arms: no arm is called {min(unknown)!r}; choose from {names}")
        return self

    @model_validator(mode="after")
    def tuning_seeds_are_not_measured(self) -> Self:
        if shared := {*self.seeds} & {*self.tuning_seeds}:
            raise ValueError(f"tuning_seeds: {min(shared)} is also measured; choose on other seeds")
        return self

    def as_control(self) -> "Finding":
        """Return the finding under its control's conditions."""
        updates = {
            "all": self.all | self.control.all,
            "arms": self.arms | self.control.arms,
            "options": self.options | self.control.options,
        }
        return self.model_copy(update=updates)

    def conditions(self) -> dict[str, Any]:
        """Return everything that a result depends on, except the code, as plain data."""
        keys = {"trains", "all", "arms", "over", "seeds", "measure", "options"}
        return self.model_dump(mode="json", include=keys | ({"tuning_seeds"} if self.tuning_seeds else set()))

    def quantities(self) -> list[str]:
        """Return the names of the quantities that the measuring function must return."""
        return [*self.expected, *self.inconclusive, *self.because]

    def varied(self) -> set[str]:
        """Return the keys in which the finding's runs differ."""
        return {"seed", *self.over, *(key for arm in self.arms.values() for key in arm)}

    def with_overrides(self, overrides: Overrides, seeds: list[int]) -> "Finding":
        """Return the finding with these overrides, and with these seeds if there are any. Raises
        ConfigError if an override sets a key that the finding itself varies."""
        if conflicts := overrides.keys() & self.varied():
            raise ConfigError(f"{min(conflicts)}: the finding varies this key itself; override another key")
        return self.model_copy(update={"all": self.all | overrides, "seeds": seeds or self.seeds})

    def first_seeds(self, count: int) -> list[int]:
        """Return ``count`` seeds: the finding's own, then others above all that it uses."""
        unused = max(*self.seeds, *self.tuning_seeds) + 1
        return [*self.seeds, *range(unused, unused + count)][:count]


def load_findings(config_dir: str | None = None) -> dict[str, Finding]:
    """Return all findings by name: those of conf/finding and of the folder ``finding`` of config_dir, which
    takes precedence. Raises ConfigError, and OSError if ``config_dir`` does not exist."""
    folders = [CONF / "finding"]
    if config_dir and "finding" in os.listdir(config_dir):
        folders.append(Path(config_dir) / "finding")
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix == ".yaml"]
    by_name = {file.stem: file for file in files}
    return {name: load_finding(file) for name, file in by_name.items()}


def load_finding(file: Path) -> Finding:
    """Read a finding. Raises ConfigError if it is invalid."""
    try:
        return checked(Finding, yaml.safe_load(file.read_text(encoding="utf-8")))
    except (ConfigError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
