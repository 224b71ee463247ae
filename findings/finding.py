"""A finding: a published claim, the conditions under which it is measured, and what would confirm it.

Each is a YAML in conf/finding, or in the folder ``finding`` of a --config-dir; its keys are the attributes
below. Reading them does not import torch.
"""

import difflib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from cli.app import CONF
from comparison.verdicts import Interval
from system.errors import ConfigError
from system.validate import Checked, checked

Scalar = bool | int | float | str | None
Overrides = dict[str, Scalar]  # key of train.py -> value
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3)]


def override(key: str, value: Scalar) -> str:
    """Return ``key=value`` as it is typed."""
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


class Expected(Checked):
    """The range in which the mean of a quantity should lie; an end that is not given is open.

    Attributes:
        above, below: the ends. A single end is excluded, since a tie confirms no direction; two are included,
            so that a quantity that must be 0 is expected from 0 to 0.
        why: the source of these numbers, or, for a condition, what it means if it is not fulfilled.
    """

    above: float | None = None
    below: float | None = None
    why: str

    @model_validator(mode="after")
    def has_a_range(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("above: neither this nor below is given, so nothing could contradict it")
        if self.low > self.high:
            raise ValueError(f"above: {self.above} is above below={self.below}")
        return self

    @property
    def low(self) -> float:
        return -math.inf if self.above is None else self.above

    @property
    def high(self) -> float:
        return math.inf if self.below is None else self.below

    @property
    def closed(self) -> bool:
        return self.above is not None and self.below is not None

    def holds(self, interval: Interval) -> bool:
        """Return whether the whole interval lies in the range."""
        inside = self.low < interval.low and interval.high < self.high
        return inside or (self.closed and self.low <= interval.low and interval.high <= self.high)

    def excludes(self, interval: Interval) -> bool:
        """Return whether no part of the interval lies in the range."""
        outside = interval.high < self.low or self.high < interval.low
        return outside or (not self.closed and (interval.high == self.low or self.high == interval.low))


class Control(Checked):
    """The same measurement under conditions in which the claim should fail: another norm, placement or init.

    Attributes:
        what: what is wrong in it, in words.
        all, arms, options: replacements for the finding's; arms that are not named stay.
    """

    what: str
    all: Overrides = Field(default_factory=dict)
    arms: dict[str, Overrides] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class Picture(Checked):
    """Titles and scales of the picture's axes. Its points are the rows that are measured, a colour per
    arm."""

    x: str
    y: str
    x_scale: Literal["linear", "log", "names"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    mark: Literal["line", "point"] = "line"


class Finding(Checked):
    """Attributes:
    claim: one sentence.
    source: paper, arXiv number, section.
    numbers: those of the source, and how well the source was checked.
    read: the basis of ``numbers``: ``here`` (the paper or its code was read for this project), ``second
        hand``, ``memory``, or ``ours``: not a published claim, but derived from a formula or first measured
    here. size: model, text and length, in words.
    minutes: the time it takes on two cores.
    trains: whether its models are trained; otherwise they are measured as initialised.
    all, arms, over: overrides of train.py: for every model; for each arm, by its name; and one key with
        several values, each of which every arm has.
    seeds: of the models; arms are paired by seed.
    measure: the function that measures it, with ``options`` as keyword arguments.
    expected: the quantities that it returns, and their ranges. All must hold.
    inconclusive: quantities that must lie in their ranges for the verdict to mean anything.
    because: what the most likely reason predicts if the result is not the claimed one; it is measured, too,
        and is no part of the verdict.
    remark: further remarks on the result.
    """

    claim: str
    source: str
    numbers: str
    read: Literal["here", "second hand", "memory", "ours"]
    size: str
    minutes: Annotated[float, Field(gt=0, le=20)]
    trains: bool
    all: Overrides = Field(default_factory=dict)
    arms: Annotated[dict[str, Overrides], Field(min_length=1)]
    over: Annotated[dict[str, list[Scalar]], Field(max_length=1)] = Field(default_factory=dict)
    seeds: Seeds
    measure: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
    options: dict[str, Any] = Field(default_factory=dict)
    expected: Annotated[dict[str, Expected], Field(min_length=1)]
    inconclusive: dict[str, Expected] = Field(default_factory=dict)
    because: dict[str, Expected] = Field(default_factory=dict)
    control: Control
    picture: Picture
    remark: str

    @model_validator(mode="after")
    def control_has_its_arms(self) -> Self:
        if other := self.control.arms.keys() - self.arms.keys():
            raise ValueError(
                f"control.arms: no arm is called {min(other)!r}; choose from {', '.join(self.arms)}"
            )
        return self

    def as_control(self) -> "Finding":
        """Return the finding under its control's conditions."""
        changed = {
            "all": self.all | self.control.all,
            "arms": self.arms | self.control.arms,
            "options": self.options | self.control.options,
        }
        return self.model_copy(update=changed)

    def conditions(self) -> dict[str, Any]:
        """Return everything that a result depends on, except the code, as plain data."""
        keys = {"trains", "all", "arms", "over", "seeds", "measure", "options"}
        return self.model_dump(mode="json", include=keys)

    def quantities(self) -> list[str]:
        """Return the names of everything that its function must return."""
        return [*self.expected, *self.inconclusive, *self.because]

    def under(self, overrides: Overrides, seeds: list[int] | None) -> "Finding":
        """Return the finding under other conditions. Raises ConfigError if its arms differ in one of the
        keys."""
        varied = {"seed", *self.over, *(key for arm in self.arms.values() for key in arm)}
        if taken := overrides.keys() & varied:
            raise ConfigError(f"{min(taken)}: its models differ in this key; change another one, or --seeds")
        return self.model_copy(update={"all": self.all | overrides, "seeds": seeds or self.seeds})


def load_findings(config_dir: str | None = None) -> dict[str, Finding]:
    """Return all findings by name: those of conf/finding and of the folder ``finding`` of config_dir, which
    takes precedence.

    Raises:
        ConfigError: a finding is invalid.
        OSError: the folder does not exist.
    """
    folders = [CONF / "finding", *([Path(config_dir) / "finding"] if config_dir else [])]
    files = {
        file.stem: file for folder in folders for file in sorted(folder.iterdir()) if file.suffix == ".yaml"
    }
    return {name: load_finding(file) for name, file in files.items()}


def load_finding(file: Path) -> Finding:
    """Read a finding. Raises ConfigError if it is invalid."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ConfigError("not a mapping of keys; see conf/finding for examples")
        return checked(Finding, content)
    except (ConfigError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None


def find(name: str, findings: dict[str, Finding]) -> Finding:
    """Return the finding of that name. Raises ConfigError if it does not exist."""
    if name not in findings:
        near = difflib.get_close_matches(name, findings, n=1)
        advice = f"did you mean {near[0]}?" if near else "python -m findings lists them"
        raise ConfigError(f"no finding is called {name!r}; {advice}")
    return findings[name]
