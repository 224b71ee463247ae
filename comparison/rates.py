"""Learning rates: each group at its own best one, and the cost of a wrong one."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from comparison.groups import RATE, Group, Keys
from comparison.verdicts import Interval, Losses, interval


@dataclass
class Family:
    """Groups that differ only in their learning rate.

    Attributes:
        keys: the values that distinguish the family from the others.
        rates: learning rate -> group, from the lowest rate.
        best: the rate with the lowest mean loss among those at which no seed diverged, if any.
    """

    keys: Keys
    rates: dict[float, Group]
    best: float | None

    @property
    def chosen(self) -> Group:
        """The group at the best rate; at the lowest rate if a seed diverged at every rate."""
        return self.rates[min(self.rates) if self.best is None else self.best]

    @property
    def at_edge(self) -> bool:
        """True if the best is the lowest or highest of several rates: a better one may lie beyond."""
        return len(self.rates) > 1 and self.best in (min(self.rates), max(self.rates))

    @property
    def losses(self) -> dict[float, Losses]:
        """The losses by rate and seed, of the rates at which no seed diverged."""
        return {rate: group.losses for rate, group in self.rates.items() if group.losses}


def families(groups: Sequence[Group]) -> list[Family]:
    by_keys = defaultdict(list)
    for group in groups:
        by_keys[repr({key: value for key, value in group.keys.items() if key != RATE})].append(group)
    result = []
    for members in by_keys.values():
        keys = {key: value for key, value in members[0].keys.items() if key != RATE}
        rates = {float(group.runs[0].config[RATE]): group for group in members}
        result.append(Family(keys, dict(sorted(rates.items())), best_rate(rates)))
    return result


def best_rate(rates: Mapping[float, Group]) -> float | None:
    """Return the rate with the lowest mean val/full_loss, whatever metric is compared, over the seeds that
    all rates have, or over each rate's own seeds if they have none in common."""
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
    """The loss that a family loses, averaged over the rates, by not being trained at its best one.

    Attributes:
        rates: the rates that every family has.
        losses: the mean loss at each; a run that diverged or got worse counts as the initial loss.
        initial: the loss before training.
        value: E_η [min(ℓ(η), ℓ0)] − ℓ* (Wortsman et al. 2023, arXiv 2309.14322, section 2.2) of each seed,
            over the seeds that have all rates.
    """

    family: Family
    rates: list[float]
    losses: list[float]
    initial: float
    value: Interval


def sensitivity(losses: Mapping[float, Mapping[int, float]], initial: float) -> tuple[list[float], Interval]:
    """Return the mean capped loss at each rate, and the learning rate sensitivity.

    Args:
        losses: rate -> seed -> loss; infinite or NaN if the run diverged. Rates are log-spaced.
        initial: ℓ0, which caps the losses.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in losses.values())))
    if not seeds:
        return [math.nan] * len(losses), interval([])
    rows = [
        [loss if (loss := by_seed[s]) < initial else initial for s in seeds] for by_seed in losses.values()
    ]
    table = np.array(rows, np.float64)  # (rates, seeds)
    means = table.mean(axis=1)
    lowest = table[int(means.argmin())]
    return means.tolist(), interval((table.mean(axis=0) - lowest).tolist())


def sensitivities(tried: Sequence[Family]) -> list[Sensitivity]:
    """Return the sensitivity of every family, whose values are losses, over the rates that all have; nothing
    if these are fewer than three, or no run was evaluated before its first step."""
    common = sorted(set.intersection(*(set(family.rates) for family in tried))) if tried else []
    if len(common) < 3:
        return []
    result = []
    for family in tried:
        groups = {rate: family.rates[rate] for rate in common}
        curves = [run.curve("val/loss") for group in groups.values() for run in group.runs]
        starts = [losses[0] for steps, losses in curves if len(steps) and steps[0] == 0]
        if not starts:
            return []
        initial = float(np.mean(starts))
        losses = {
            rate: dict.fromkeys(group.diverged, math.inf) | group.values for rate, group in groups.items()
        }
        means, value = sensitivity(losses, initial)
        result.append(Sensitivity(family, common, means, initial, value))
    return result
