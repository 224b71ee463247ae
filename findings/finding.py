"""A finding: a published claim, how it is measured, and the verdict on what was measured.

A finding is a YAML file in conf/finding, or in the folder ``finding`` of a --config-dir; its keys are the
attributes of ``Finding``. Its result is a JSON file of the same name. Reading them does not import torch.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import yaml
from pydantic import Field, model_validator

from cli.errors import CONF, checked
from cli.schema import Checked
from data.errors import ConfigError
from study.statistics import half_width

Scalar = bool | int | float | str | None
Overrides = dict[str, Scalar]  # key of train.py -> value
Seeds = list[Annotated[int, Field(ge=0)]]
ERROR = 0.05  # the chance of a false verdict


class Expected(Checked):
    """The range in which the mean of a quantity should lie. A single end does not belong to the range,
    because a tie confirms no direction. If both ends are given, they belong to it, so that a finding can
    expect exactly 0."""

    above: float = -math.inf
    below: float = math.inf
    why: str  # where the ends come from

    @model_validator(mode="after")
    def has_an_end(self) -> Self:
        if (self.above, self.below) == (-math.inf, math.inf):
            raise ValueError("above: neither above nor below is given, so nothing could fail; give one")
        return self

    def in_order(self, x: float, y: float) -> bool:
        """Return whether x < y, or x ≤ y if both ends are given."""
        return x < y or (x == y and math.isfinite(self.above) and math.isfinite(self.below))

    def includes(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies in the range."""
        return self.in_order(self.above, low) and self.in_order(high, self.below)

    def excludes(self, low: float, high: float) -> bool:
        """Return whether no part of the interval lies in the range."""
        return not self.in_order(self.above, high) or not self.in_order(low, self.below)

    def __str__(self) -> str:
        if self.below == math.inf:
            return f"> {self.above:g}"
        if self.above == -math.inf:
            return f"< {self.below:g}"
        return f"{self.above:g}" if self.above == self.below else f"[{self.above:g}, {self.below:g}]"


class Picture(Checked):
    """Titles and scales of the picture's axes. ``y_max`` cuts off values that are far out."""

    x: str
    y: str
    x_scale: Literal["linear", "log", "names"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    y_max: float | None = None
    mark: Literal["line", "point"] = "line"


class Finding(Checked):
    """A claim, and how it is measured."""

    claim: str  # one sentence
    source: str  # paper, arXiv number, section; its numbers; "second hand" if the paper itself was not read
    minutes: float  # at most, on two cores
    trains: bool  # False: models are measured as initialised
    # Overrides of train.py: for all models; for each arm. ``over``: a key and its values, tried by every arm.
    all: Overrides = Field(default_factory=dict)
    arms: Annotated[dict[str, Overrides], Field(min_length=1)]
    over: Annotated[dict[str, list[Scalar]], Field(max_length=1)] = Field(default_factory=dict)
    seeds: Annotated[Seeds, Field(min_length=3)]  # of the models that are measured; arms are paired by seed
    # Models of these seeds serve only to choose each arm's best value of the key in ``over``.
    tuning_seeds: Seeds = Field(default_factory=list)
    measure: Annotated[str, Field(pattern=r"\w\.\w")]  # the measuring function
    options: dict[str, Any] = Field(default_factory=dict)  # the function's keyword arguments
    expected: Annotated[dict[str, Expected], Field(min_length=1)]  # by quantity; the claim needs all of them
    control: str = ""  # conditions under which the claim should fail, and the verdict then
    picture: Picture
    remark: str = ""

    def conditions(self) -> dict[str, Any]:
        """Return everything that a result depends on, except the code, as plain data."""
        keys = {"trains", "all", "arms", "over", "seeds", "tuning_seeds", "measure", "options"}
        return self.model_dump(mode="json", include=keys)


def load_findings(config_dir: str | None = None) -> dict[str, Finding]:
    """Return all findings by name: those of conf/finding and of the folder ``finding`` of config_dir. The
    latter take precedence. Raises ConfigError."""
    folders = [CONF / "finding", *([Path(config_dir) / "finding"] if config_dir else [])]
    return {file.stem: load_finding(file) for folder in folders for file in sorted(folder.glob("*.yaml"))}


def load_finding(file: Path) -> Finding:
    """Read a finding. Raises ConfigError if it is invalid; yaml.YAMLError if the file is not YAML."""
    try:
        return checked(Finding, yaml.safe_load(file.read_text(encoding="utf-8")))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def read_result(finding: Finding, file: Path) -> dict[str, Any] | None:
    """Return a stored result; None if it does not exist or was measured under other conditions.

    ``conditions``: those of the finding; ``by_seed``: seed -> quantity -> value; ``rows``: the picture's
    points (arm, x, y) of all seeds; ``where``: processor, precision, versions of packages.
    """
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return result if result.get("conditions") == finding.conditions() else None


# ---------------------------------------------------------------------------------------------------
# The verdict


class Outcome(NamedTuple):
    """A quantity's mean over seeds, the ends of its 95 % interval, and its verdict."""

    quantity: str
    expected: Expected
    mean: float
    low: float
    high: float
    verdict: str


def interval(values: Sequence[float], k: int = 1) -> tuple[float, float, float]:
    """Return the mean and the ends of its t-interval (Student 1908) at 1 − ERROR/k; NaN if a value is not
    finite."""
    if not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    mean, half = float(np.mean(values)), float(half_width(np.std(values, ddof=1), len(values), k, ERROR))
    return mean, mean - half, mean + half


def judge(
    expectations: Mapping[str, Expected], by_seed: Mapping[Any, Mapping[str, Any]]
) -> tuple[str, list[Outcome]]:
    """Return a finding's verdict, and the outcome of each quantity.

    A quantity passes if its 95 % interval lies in the expected range. It fails if its interval at 1 − 0.05/k
    lies outside the range, where k is the number of quantities. Otherwise it is inconclusive. A finding
    passes if all its quantities pass, so a false PASS is no likelier than with one quantity (Berger 1982). It
    fails if one of them fails. That has k chances to be wrong, hence the wider intervals (Bonferroni).
    """
    outcomes = []
    for quantity, expected in expectations.items():
        values = [float(each[quantity]) for each in by_seed.values()]
        mean, low, high = interval(values)
        verdict = "INCONCLUSIVE"
        if expected.includes(low, high):
            verdict = "PASS"
        elif math.isfinite(mean) and expected.excludes(*interval(values, len(expectations))[1:]):
            verdict = "FAIL"
        outcomes.append(Outcome(quantity, expected, mean, low, high, verdict))
    verdicts = {outcome.verdict for outcome in outcomes}
    return next(v for v in ("FAIL", "INCONCLUSIVE", "PASS") if v in verdicts), outcomes
