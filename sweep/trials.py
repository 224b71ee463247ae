"""Draw the settings that are tried for each arm of a fair comparison.

A setting is a value of each tuned key. The settings are the same for all arms, so that all have equal trials.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from pydantic import Field, model_validator

from cli import compose as app
from cli.errors import checked
from cli.schema import Checked
from data.errors import ConfigError

Settings = tuple[str, ...]  # an override of each tuned key
SPARE = 16  # points drawn per trial: where a key has a list of values, several points give the same setting


class Round(Checked):
    """Trials of the settings of each arm that were the best in the round before."""

    trials: Annotated[float, Field(gt=0, le=1)]  # how many, as a share of all trials
    steps: Annotated[float, Field(gt=0, le=1)]  # how long, as a share of train.steps
    seeds: Annotated[int, Field(ge=1)]  # on how many of the tuning seeds

    def settings_left(self, settings: int) -> int:
        """Return how many of the settings this round tries, rounded up."""
        return math.ceil(self.trials * settings - 1e-9)  # the product may be a little above an integer


class Tuning(Checked):
    """How the settings are chosen: ``hydra.sweeper.tune``, by rounds of fewer and fewer trials."""

    keys: dict[str, Any]  # key -> values, or an interval, in Hydra's syntax; null: not tuned
    trials: Annotated[int, Field(ge=1)]  # settings that are drawn
    only: list[int] | None = None  # numbers, from 1, of the settings that are tried; absent: all
    rounds: Annotated[list[Round], Field(min_length=1)]
    borrow: bool  # also train each arm at the settings of the baseline

    @model_validator(mode="after")
    def rounds_narrow_the_choice(self) -> Self:
        if self.rounds[0].trials != 1:
            raise ValueError("rounds: the first one tries all settings; give it trials: 1")
        for earlier, later in pairwise(self.rounds):
            if later.trials > earlier.trials or later.steps < earlier.steps or later.seeds < earlier.seeds:
                raise ValueError(
                    "rounds: a round has more trials than the one before it, or is shorter, or has fewer "
                    "seeds; sort them from many trials to few"
                )
        return self

    @model_validator(mode="after")
    def only_names_drawn_settings(self) -> Self:
        if self.only is not None and (not self.only or not {*self.only} <= {*range(1, self.trials + 1)}):
            raise ValueError(f"only: give one or more numbers from 1 to {self.trials}, the number of trials")
        return self


def tuning(plain: Any) -> Tuning:
    """Return ``hydra.sweeper.tune``, validated. Raises ConfigError."""
    try:
        return checked(Tuning, plain)
    except ConfigError as error:
        raise ConfigError(f"hydra.sweeper.tune.{error}") from None


def space(keys: Mapping[str, Any], typed: Iterable[Override]) -> list[Override]:
    """Return the values to choose from for each key. Typed values replace those of the preset; a key with
    null, or with one typed value, is not tuned. Raises ConfigError if the preset gives a key one value."""
    parser = OverridesParser.create()
    overrides = {key: parser.parse_override(f"{key}={values}") for key, values in keys.items()}
    replaced = {key: override for override in typed if (key := app.key_in(override)) in keys}
    for key, override in overrides.items():
        if keys[key] is not None and key not in replaced and not override.is_sweep_override():
            advice = f"write {key}: A,B or interval(A,B); a value that is not tuned belongs in params"
            raise ConfigError(
                f"hydra.sweeper.tune.keys.{key}: {keys[key]} is nothing to choose from; {advice}"
            )
    return [override for override in (overrides | replaced).values() if override.is_sweep_override()]


def trial_settings(how: Tuning, keys: Sequence[Override], seed: int) -> list[Settings]:
    """Return the settings to try: all that are drawn, or those that ``how`` names. Raises ConfigError."""
    drawn = draw(keys, how.trials, seed)
    if how.only is None or not keys:
        return drawn
    if max(how.only) > len(drawn):
        raise ConfigError(
            f"hydra.sweeper.tune.only: there are only {len(drawn)} settings; name some of these"
        )
    return [each for number, each in enumerate(drawn, 1) if number in how.only]


def draw(keys: Sequence[Override], count: int, seed: int) -> list[Settings]:
    """Return ``count`` different settings, or fewer if there are not as many. They fill the space of the
    keys evenly: points of a Sobol sequence, scrambled by random matrices and a shift (Matoušek 1998). A
    larger count begins with the same settings.
    """
    from scipy.stats.qmc import Sobol  # slow to import

    if not keys:
        return [()]
    points = Sobol(len(keys), rng=seed).random_base2(math.ceil(math.log2(SPARE * count)))
    settings = (tuple(value_at(key, u) for key, u in zip(keys, point, strict=True)) for point in points)
    return list(dict.fromkeys(settings))[:count]


def value_at(key: Override, u: float) -> str:
    """Return the override that sets a key to its value at u, 0 <= u < 1; a value from an interval is
    rounded to three significant digits."""
    values = key.value()
    if not isinstance(values, IntervalSweep):
        [choices] = app.alternatives([key]).values()
        return choices[int(u * len(choices))]
    low, high = float(values.start or 0), float(values.end or 0)
    if not low < high or ("log" in values.tags and low <= 0):
        problem = f"no interval from {low:g} to {high:g}"
        raise ConfigError(f"{key.get_key_element()}: {problem}; begin below the end, and with log above 0")
    value = low * (high / low) ** u if "log" in values.tags else low + (high - low) * u
    return f"{key.get_key_element()}={value:.3g}"
