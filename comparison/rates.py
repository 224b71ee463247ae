"""Learning rates: each group at its own best, and how much a wrong one costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from comparison.groups import RATE, Group, Keys
from comparison.verdicts import Interval, Losses, interval


@dataclass
class Family:
    """Groups that differ in their learning rate alone.

    Attributes:
        keys: what sets it apart from other families.
        rates: learning rate -> its group, from the lowest.
        best: the rate with the lowest mean loss, of those at which no seed diverged; None where there is
            none.
    """

    keys: Keys
    rates: dict[float, Group]
    best: float | None

    @property
    def chosen(self) -> Group:
        """The group at the best rate, or at the lowest where each has a seed that diverged."""
        return self.rates[min(self.rates) if self.best is None else self.best]

    @property
    def at_edge(self) -> bool:
        """Whether the best is the lowest or highest of several that were tried: a better one may lie
        beyond."""
        return len(self.rates) > 1 and self.best in (min(self.rates), max(self.rates))

    @property
    def losses(self) -> dict[float, Losses]:
        """By rate and seed, of the rates at which no seed diverged."""
        return {rate: group.losses for rate, group in self.rates.items() if group.losses}


def families(groups: Sequence[Group]) -> list[Family]:
    found: dict[str, dict[float, Group]] = {}
    keys: dict[str, Keys] = {}
    for group in groups:
        others = {key: value for key, value in group.keys.items() if key != RATE}
        keys[repr(others)] = others
        rate = float(group.runs[0].config[RATE])
        found.setdefault(repr(others), {})[rate] = group
    result = []
    for name, rates in found.items():
        best = best_rate(rates)
        result.append(Family(keys[name], dict(sorted(rates.items())), best))
    return result


def best_rate(rates: Mapping[float, Group]) -> float | None:
    """By the mean of val/full_loss, whatever else is compared, over the seeds that all rates have; over each
    one's own where there are none."""
    losses = {
        rate: {run.seed: run.last("val/full_loss") for run in group.runs}
        for rate, group in rates.items()
        if not group.diverged
    }
    if not losses:
        return None
    common = set.intersection(*(set(by_seed) for by_seed in losses.values()))
    means = {
        rate: np.mean([loss for seed, loss in by_seed.items() if not common or seed in common])
        for rate, by_seed in losses.items()
    }
    return min(means, key=lambda rate: means[rate])


@dataclass
class Sensitivity:
    """What a family loses, on average over the rates that were tried, by not being at its best one.

    Attributes:
        rates: those that every family has.
        losses: the mean loss at each, runs that diverged or were worse than at the start counted as the
            start.
        initial: the loss at the start.
        value: E_η [min(ℓ(η), ℓ0)] − ℓ* (Wortsman et al. 2023, arXiv 2309.14322, section 2.2): of each seed,
            over the seeds that have all rates.
    """

    family: Family
    rates: list[float]
    losses: list[float]
    initial: float
    value: Interval


def sensitivity(losses: Mapping[float, Mapping[int, float]], initial: float) -> tuple[list[float], Interval]:
    """Mean capped loss at each rate, and the learning rate sensitivity.

    Args:
        losses: rate -> seed -> loss; infinite or NaN where the run diverged. Rates are log-spaced.
        initial: ℓ0, which caps them.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in losses.values())))
    rows = [
        [loss if (loss := by_seed[s]) < initial else initial for s in seeds] for by_seed in losses.values()
    ]
    table = np.array(rows, np.float64).reshape(len(rows), len(seeds))  # (rates, seeds)
    if not seeds:
        return [math.nan] * len(rows), interval([])
    means = table.mean(axis=1)
    lowest = table[int(means.argmin())]
    return means.tolist(), interval((table.mean(axis=0) - lowest).tolist())


def sensitivities(found: Sequence[Family]) -> list[Sensitivity]:
    """Of every family, over the rates that all of them have; none where these are fewer than three. The
    families' values are losses."""
    common = sorted(set.intersection(*(set(family.rates) for family in found))) if found else []
    if len(common) < 3:
        return []
    result = []
    for family in found:
        groups = {rate: family.rates[rate] for rate in common}
        curves = [run.curve("val/loss") for group in groups.values() for run in group.runs]
        starts = [losses[0] for steps, losses in curves if len(steps) and steps[0] == 0]
        if not starts:
            return []  # nothing was evaluated at the start
        initial = float(np.mean(starts))
        losses = {
            rate: dict.fromkeys(group.diverged, math.inf) | group.values for rate, group in groups.items()
        }
        means, value = sensitivity(losses, initial)
        result.append(Sensitivity(family, common, means, initial, value))
    return result
