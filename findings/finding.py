"""A finding: a published claim, under which conditions it is looked at, and what would confirm it.

Each is a YAML in conf/finding, or in the folder ``finding`` of a --config-dir; its keys are the attributes
here. Torch is not imported for reading them.
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
Overrides = dict[str, Scalar]  # key of train.py's -> value
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3)]


def override(key: str, value: Scalar) -> str:
    """As it is typed."""
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


class Expected(Checked):
    """Where the mean of a quantity should lie; an end that is not given is open.

    Attributes:
        above, below: the ends. One by itself is not included: a tie confirms no direction. Two are: what must
            be 0 is from 0 to 0.
        why: where these numbers come from, or, of a condition, what it means if it is not fulfilled.
    """

    above: float | None = None
    below: float | None = None
    why: str

    @model_validator(mode="after")
    def some_interval(self) -> Self:
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

    def holds(self, found: Interval) -> bool:
        """Whether all of it lies there."""
        inside = self.low < found.low and found.high < self.high
        return inside or (self.closed and self.low <= found.low and found.high <= self.high)

    def excludes(self, found: Interval) -> bool:
        """Whether none of it does."""
        outside = found.high < self.low or self.high < found.low
        return outside or (not self.closed and (found.high == self.low or self.high == found.low))


class Control(Checked):
    """The same measurement where the claim should not come true: with another norm, placement or
    initialization.

    Attributes:
        what: what is wrong in it, in words.
        all, arms, options: what is put in the place of the finding's; an arm that is not named stays.
    """

    what: str
    all: Overrides = Field(default_factory=dict)
    arms: dict[str, Overrides] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


class Picture(Checked):
    """Titles and scales of the axes of its picture; ``rows`` of what is measured are its points, a colour an
    arm."""

    x: str
    y: str
    x_scale: Literal["linear", "log", "names"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    mark: Literal["line", "point"] = "line"


class Finding(Checked):
    """Attributes:
    claim: one sentence.
    source: paper, arXiv number, where in it.
    numbers: those of the source, and how well the source was checked for them.
    read: that: ``here`` (the paper or its code was read for this project), ``second hand``, ``memory``, or
        ``ours``: it is no published claim, but follows from a formula or was first measured here.
    size: model, text and length, in words.
    minutes: that it takes on two cores.
    trains: whether its models are trained; else they are looked at as step 0 sees them.
    all, arms, over: train.py's overrides: of every model; of each arm, by its name; and one key with several
        values, each of which every arm has.
    seeds: of the models; arms are paired by them. measure: the function that measures it, and ``options`` its
        keyword arguments. expected: the quantities that it returns, and where each should lie. All must.
        inconclusive: those of its quantities that must lie where they say for the verdict to mean anything.
        because: what the most likely reason for another result than the claimed one predicts; measured, too,
        and no part of the verdict.
    remark: what else is to be said of the result.
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
            raise ValueError(f"control.arms: there is no arm {min(other)!r}; it has {', '.join(self.arms)}")
        return self

    def as_control(self) -> "Finding":
        """The finding with its control's conditions."""
        changed = {
            "all": self.all | self.control.all,
            "arms": self.arms | self.control.arms,
            "options": self.options | self.control.options,
        }
        return self.model_copy(update=changed)

    def conditions(self) -> dict[str, Any]:
        """All that a result depends on, but for the code, as plain data."""
        return self.model_dump(
            mode="json", include={"trains", "all", "arms", "over", "seeds", "measure", "options"}
        )

    def quantities(self) -> list[str]:
        """All that its function must give."""
        return [*self.expected, *self.inconclusive, *self.because]

    def under(self, overrides: Overrides, seeds: list[int] | None) -> "Finding":
        """The finding under other conditions. Raises ConfigError where its arms differ in these."""
        own = {"seed", *self.over, *(key for arm in self.arms.values() for key in arm)}
        if taken := overrides.keys() & own:
            raise ConfigError(f"{min(taken)}: is what its models differ in; change another key, or --seeds")
        return self.model_copy(update={"all": self.all | overrides, "seeds": seeds or self.seeds})


def every(config_dir: str | None = None) -> dict[str, Finding]:
    """All findings by name: those of conf/finding, and those of the folder ``finding`` of config_dir, which
    go before.

    Raises:
        ConfigError: one is not as findings are.
        OSError: there is no such folder.
    """
    folders = [CONF / "finding", *([Path(config_dir) / "finding"] if config_dir else [])]
    files = {
        file.stem: file for folder in folders for file in sorted(folder.iterdir()) if file.suffix == ".yaml"
    }
    return {name: read(file) for name, file in files.items()}


def read(file: Path) -> Finding:
    """Raises ConfigError where it is not as findings are."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ConfigError("is no mapping of keys; look at one of conf/finding")
        return checked(Finding, content)
    except (ConfigError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None


def named(name: str, among: dict[str, Finding]) -> Finding:
    """Raises ConfigError where there is none of that name."""
    if name not in among:
        near = difflib.get_close_matches(name, among, n=1)
        advice = f"did you mean {near[0]}?" if near else "python -m findings lists them"
        raise ConfigError(f"there is no finding {name!r}; {advice}")
    return among[name]
