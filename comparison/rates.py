"""Learning rates: each group's best rate, and the cost of another rate."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from comparison.groups import RATE, Group, Keys, families_over
from comparison.load import Run
from comparison.verdicts import Interval, interval

LOSS = "val/full_loss"


@dataclass
class Family:
    """Groups that differ only in their learning rate."""

    keys: Keys  # the keys that distinguish the family from the others
    rates: dict[float, Group]  # in ascending order
    best: float | None  # the rate with the lowest mean loss among those at which no seed diverged, if any

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.rates.values() for run in group.runs]

    @property
    def rate(self) -> float | None:
        """The best rate, or the only one."""
        return next(iter(self.rates)) if len(self.rates) == 1 else self.best

    @property
    def best_group(self) -> Group:
        """The group at the best rate, or at the lowest rate if every rate has a seed that diverged."""
        return self.rates[min(self.rates) if self.best is None else self.best]

    def failed_neighbours(self, rate: float | None) -> dict[float, int]:
        """Return the rates next to ``rate`` at which runs diverged or collapsed, and how many runs did."""
        if rate not in self.rates or self.best is None:
            return {}
        best_loss = float(np.mean([run.last(LOSS) for run in self.best_group.runs]))
        ordered, i = [*self.rates], [*self.rates].index(rate)
        neighbours = ordered[max(0, i - 1) : i] + ordered[i + 1 : i + 2]
        runs = {neighbour: self.rates[neighbour].runs for neighbour in neighbours}
        counts = {r: sum(run.diverged or has_collapsed(run, best_loss) for run in runs[r]) for r in runs}
        return {neighbour: count for neighbour, count in counts.items() if count}


def families(groups: Sequence[Group]) -> list[Family]:
    result = []
    for keys, members in families_over(groups, RATE):
        rates = {float(group.runs[0].config[RATE]): group for group in members}
        result.append(Family(keys, dict(sorted(rates.items())), best_rate(rates)))
    return result


def initial_loss(run: Run) -> float:
    """Return the loss that was evaluated at step 0; NaN if none was."""
    steps, losses = run.curve("val/loss")
    return float(losses[0]) if len(steps) and steps[0] == 0 else math.nan


def has_collapsed(run: Run, best_loss: float) -> bool:
    """Return True if a finished run's loss fell by less than half of the way from its initial value to
    ``best_loss``, which its arm can reach. False if the run did not finish or was not evaluated at step 0."""
    initial = initial_loss(run)
    return best_loss < initial and run.last(LOSS) > (initial + best_loss) / 2


def best_rate(rates: Mapping[float, Group]) -> float | None:
    """Return the rate with the lowest mean loss, whatever metric is compared; None if no rate has a mean."""
    means = mean_losses(rates)
    return min(means, key=lambda rate: means[rate], default=None)


def mean_losses(rates: Mapping[float, Group]) -> dict[float, float]:
    """Return the mean val/full_loss at each rate at which no seed diverged. The mean is over the seeds that
    all these rates have, or over each rate's own seeds if no seed has all rates."""
    losses: dict[float, dict[int, float]] = {}
    for rate, group in rates.items():
        by_seed = defaultdict(list)  # several runs of a seed if the group averages over a key
        for run in group.runs:
            by_seed[run.seed].append(run.last(LOSS))
        if not group.diverged:
            losses[rate] = {seed: float(np.mean(values)) for seed, values in by_seed.items()}
    common = set.intersection(*map(set, losses.values())) if losses else set()
    return {
        rate: float(np.mean([loss for seed, loss in by_seed.items() if not common or seed in common]))
        for rate, by_seed in losses.items()
    }


@dataclass
class Sensitivity:
    """The mean loss of a family over all rates, minus the loss at the best rate. A loss counts as at most the
    initial loss."""

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
        initial_losses = [initial_loss(run) for group in groups for run in group.runs]
        initial_losses = [loss for loss in initial_losses if math.isfinite(loss)]
        if not initial_losses:
            return []
        by_seed = [dict.fromkeys(group.diverged, math.inf) | group.values for group in groups]
        means, value = sensitivity(dict(zip(common, by_seed, strict=True)), float(np.mean(initial_losses)))
        result.append(Sensitivity(family, common, means, value))
    return result
