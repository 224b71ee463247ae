"""Learning rates: each group's best rate, and the cost of another rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from comparison.groups import RATE, Group, Keys, families_over
from comparison.verdicts import Interval, Losses, interval


@dataclass
class Family:
    """Groups that differ only in their learning rate."""

    keys: Keys  # the keys that distinguish the family from the others
    rates: dict[float, Group]  # in ascending order
    best: float | None  # the rate with the lowest mean loss among those at which no seed diverged, if any

    @property
    def best_group(self) -> Group:
        """The group at the best rate; at the lowest rate if a seed diverged at every rate."""
        return self.rates[min(self.rates) if self.best is None else self.best]

    def is_at_edge(self, rate: float | None) -> bool:
        """Return True if a rate is the lowest or highest of several, so a better rate may lie beyond it."""
        return len(self.rates) > 1 and rate in (min(self.rates), max(self.rates))

    @property
    def losses(self) -> dict[float, Losses]:
        """The losses by rate and seed, of the rates at which no seed diverged."""
        return {rate: group.losses for rate, group in self.rates.items() if group.losses}


def families(groups: Sequence[Group]) -> list[Family]:
    result = []
    for keys, members in families_over(groups, RATE):
        rates = {float(group.runs[0].config[RATE]): group for group in members}
        result.append(Family(keys, dict(sorted(rates.items())), best_rate(rates)))
    return result


def best_rate(rates: Mapping[float, Group]) -> float | None:
    """Return the rate with the lowest mean val/full_loss, whatever metric is compared. The mean is over the
    seeds that all rates have, or over each rate's own seeds if no seed has all rates."""
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
    """The mean loss of a family over all rates, minus the loss at the best rate."""

    family: Family
    rates: list[float]  # rates common to all families
    losses: list[float]  # the mean loss at each rate
    value: Interval


def sensitivity(losses: Mapping[float, Mapping[int, float]], initial: float) -> tuple[list[float], Interval]:
    """Return the mean capped loss at each rate, and the learning rate sensitivity E_η [min(ℓ(η), ℓ0)] − ℓ*
    (Wortsman et al. 2023, arXiv 2309.14322, section 2.2) over the seeds that have all rates.

    Args:
        losses: rate -> seed -> loss; infinite or NaN if the run diverged. Rates are log-spaced.
        initial: ℓ0, the loss before training, which caps the losses.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in losses.values())))
    if not seeds:
        return [math.nan] * len(losses), interval([])
    table = np.array([[by_seed[seed] for seed in seeds] for by_seed in losses.values()], np.float64)
    table = np.fmin(table, initial)  # (rates, seeds)
    means = table.mean(axis=1)
    lowest = table[int(means.argmin())]
    return means.tolist(), interval((table.mean(axis=0) - lowest).tolist())


def sensitivities(families: Sequence[Family]) -> list[Sensitivity]:
    """Return every family's sensitivity over the rates that all families have; the metric must be a loss.
    [] if these are fewer than three rates, or if a family has no run that was evaluated at step 0."""
    common = sorted(set.intersection(*(set(family.rates) for family in families))) if families else []
    if len(common) < 3:
        return []
    result = []
    for family in families:
        groups = [family.rates[rate] for rate in common]
        curves = [run.curve("val/loss") for group in groups for run in group.runs]
        initial_losses = [losses[0] for steps, losses in curves if len(steps) and steps[0] == 0]
        if not initial_losses:
            return []
        by_seed = [dict.fromkeys(group.diverged, math.inf) | group.values for group in groups]
        means, value = sensitivity(dict(zip(common, by_seed, strict=True)), float(np.mean(initial_losses)))
        result.append(Sensitivity(family, common, means, value))
    return result
