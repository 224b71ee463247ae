"""The trials of a study: draw settings, the same for every arm, and choose the best of each arm.

A range is a text: ``log 3e-4 3e-2``, ``linear 0.05 0.3``, or the values to choose from, ``gpt2 xavier``.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from cli.errors import checked
from cli.schema import RunConfig
from data.errors import ConfigError
from study.files import Settings
from training.run_folder import SELECT, last_row, read_status

SPARE = 16  # points to draw for each setting: if keys have few values, several points give the same setting


def draw(tune: Mapping[str, str], count: int) -> list[Settings]:
    """Return ``count`` different settings, or all if there are fewer. They are points of a scrambled Sobol
    sequence, which fills the space of the tuned keys evenly. A larger count begins with the same settings."""
    from scipy.stats.qmc import Sobol  # slow to import

    points = Sobol(len(tune), rng=0).random_base2(math.ceil(math.log2(SPARE * count)))
    settings: list[Settings] = []
    for point in points:
        setting = {key: value_at(key, text, u) for (key, text), u in zip(tune.items(), point, strict=True)}
        if setting not in settings and len(settings) < count:
            settings.append(setting)
    return settings


def value_at(key: str, text: str, u: float) -> Any:
    """Return the value of a range at u, 0 ≤ u < 1: a number with three significant digits, or one of the
    values to choose from. Raises ConfigError."""
    kind, *values = text.split() or [""]
    if not kind:
        raise ConfigError(f"tune.{key}: has no range; write log LOWEST HIGHEST, or values to choose from")
    if kind not in ("log", "linear"):
        value = text.split()[int(u * len(text.split()))]
        return OverridesParser.create().parse_override(f"{key}={value}").value()
    try:
        low, high = map(float, values)
    except ValueError:
        raise ConfigError(f"tune.{key}: cannot read {text!r}; write {kind} LOWEST HIGHEST") from None
    if not low < high or (kind == "log" and low <= 0):
        raise ConfigError(f"tune.{key}: there is no range {text!r}; write {kind} LOWEST HIGHEST")
    return float(f"{low * (high / low) ** u if kind == 'log' else low + (high - low) * u:.3g}")


def replaced(config: RunConfig, settings: Settings, seed: int) -> RunConfig:
    """Return the config with these settings and this seed. Raises ConfigError if a key is unknown, or is a
    group such as optim."""
    plain = config.model_dump(by_alias=True) | {"seed": seed}
    for key, value in settings.items():
        *path, last = key.split(".")
        place: Any = plain
        for name in path:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place or isinstance(place[last], dict):
            label = config.label()
            raise ConfigError(f"tune.{key}: {label} has no such value; tune a key that every arm has")
        place[last] = value
    return checked(RunConfig, plain)


# ---------------------------------------------------------------------------------------------------
# The choice

Losses = Sequence[float | None]  # None: the run has diverged


# the choice of an arm in a study without trials
AS_GIVEN = dict.fromkeys(("trial", "loss", "half_the_trials", "reason")) | {"settings": {}, "edges": []}


def select_loss(folder: Path) -> float | None:
    """Return a trial's loss, by which settings are chosen; None if the trial diverged. Raises ConfigError."""
    if read_status(folder)["state"] == "diverged":
        return None
    if SELECT not in (row := last_row(folder / "metrics.jsonl")):
        raise ConfigError(f"tune: {folder} has no {SELECT}: the validation split is too short to halve it")
    return float(row[SELECT])


def rank(losses: Losses) -> tuple[int, float]:
    """Return the sort key of a setting: how many of its trials diverged, then the mean loss of the others."""
    finished = [loss for loss in losses if loss is not None]
    return len(losses) - len(finished), fmean(finished) if finished else math.inf


def best_quarter(first: Losses) -> list[int]:
    """Return the numbers of the best quarter of the settings, at least one. ``first``: the loss of each
    setting on the first tuning seed."""
    order = sorted(range(len(first)), key=lambda number: rank([first[number]]))
    return sorted(order[: math.ceil(len(first) / 4)])


def choice(tried: Sequence[Settings], first: Losses, losses: Mapping[int, Losses]) -> dict[str, Any]:
    """Return the choice of an arm: its part of chosen.json without its runs.

    Args:
        tried: all settings. first: the loss of each on the first tuning seed.
        losses: for each setting of the best quarter, by its number, the losses on all tuning seeds.
    """
    number = min(losses, key=lambda number: (*rank(losses[number]), number))
    mean = rank(losses[number])[1]
    if math.isinf(mean):
        return AS_GIVEN | {"reason": "no usable setting"}
    return {
        "settings": tried[number],
        "trial": number,
        "loss": mean,
        "half_the_trials": half_the_trials(first),
        "edges": edges(tried[number], tried),
        "reason": None,
    }


def edges(chosen: Settings, tried: Sequence[Settings]) -> list[str]:
    """Return the keys whose chosen number is the largest or the smallest that was tried: a better value may
    lie outside the range."""
    numeric = [key for key, value in chosen.items() if type(value) in (int, float)]  # not bool
    return [key for key in numeric if chosen[key] in (f(each[key] for each in tried) for f in (min, max))]


def half_the_trials(first: Losses) -> float | None:
    """Return how much higher the best loss is, on average, in a random half of the settings; None if there is
    a half in which all diverged. ``first``: the loss of each on the first tuning seed."""
    n, half = len(first), len(first) // 2
    finished = sorted(loss for loss in first if loss is not None)
    if half == 0 or n - len(finished) >= half:
        return None
    # the i-th best leads its half if the half - 1 others of the half are among the n - 1 - i worse ones
    shares = [math.comb(n - 1 - i, half - 1) / math.comb(n, half) for i in range(len(finished))]
    return sum(share * loss for share, loss in zip(shares, finished, strict=True)) - finished[0]
