"""Sort runs by what they are for: compared, trials that chose settings, or runs at another arm's settings.

A setting is a learning rate, or a value of each key that a sweep tuned (sweep/stages.py).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from comparison import groups as grouping
from comparison.groups import RATE, Keys, title
from comparison.load import Run
from comparison.rates import LOSS, Family

SELECT, REPORT = "val/select_loss", "val/report_loss"  # the losses on the halves of the validation split
Settings = tuple[object, ...]  # the value of each tuned key


@dataclass(frozen=True)
class Round:
    """Trials of the same length on the same seeds, with the mean loss of each of their settings, infinite if
    a run diverged."""

    steps: int
    seeds: tuple[int, ...]
    means: dict[Settings, float]


@dataclass
class Roles:
    """The runs by what they are for.

    Attributes:
        keys: the tuned keys, the learning rate first.
        trials: runs by which the settings of the compared runs were chosen.
        borrowed: runs of an arm at another arm's settings.
    """

    keys: list[str]
    compared: list[Run] = field(default_factory=list)
    trials: list[Run] = field(default_factory=list)
    borrowed: list[Run] = field(default_factory=list)

    def settings(self, run: Run) -> Settings:
        return tuple(run.config.get(key) for key in self.keys)

    def likeness(self, run: Run) -> str:
        """Return a text that is the same for runs that differ only in settings, length and seed."""
        ignored = (*self.keys, "train.steps", "seed")
        return repr([(k, v) for k, v in run.config.items() if k not in ignored and grouping.is_compared(k)])


def by_role(runs: Sequence[Run]) -> Roles:
    """Sort runs by what they are for. A run whose settings other runs chose has ``tuned`` in its config; the
    trials differ from one of these only in settings, length and seed."""
    tuned = dict.fromkeys(key for run in runs for key in run.config.get("tuned") or [])
    result = Roles([RATE, *(key for key in tuned if key != RATE)])
    alike = {result.likeness(run) for run in runs if run.config.get("tuned")}
    for run in runs:
        if run.config.get("settings_of"):
            result.borrowed.append(run)
        elif not run.config.get("tuned") and result.likeness(run) in alike:
            result.trials.append(run)
        else:
            result.compared.append(run)
    return result


@dataclass
class Arm:
    """Compared runs that differ only in settings, length and seed, and the runs that have to do with them."""

    keys: Keys
    compared: list[Run]
    trials: list[Run]
    borrowed: list[Run]
    roles: Roles

    @property
    def title(self) -> str:
        return title(self.keys)

    @property
    def settings(self) -> list[Settings]:
        """The different settings of the compared runs: one, if other runs chose it."""
        return list(dict.fromkeys(map(self.roles.settings, self.compared)))

    @property
    def criterion(self) -> str:
        """The loss by which the settings were chosen."""
        return SELECT if all(run.diverged or SELECT in run.metrics for run in self.trials) else LOSS

    def rounds(self) -> list[Round]:
        """Return the rounds of trials, in the order of their length, then of their number of seeds: a round
        has all settings that were tried for its number of steps on its seeds."""
        losses: dict[int, dict[Settings, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for run in self.trials:
            loss = math.inf if run.diverged else run.last(self.criterion)
            losses[run.config["train.steps"]][self.roles.settings(run)][run.seed] = loss
        result = []
        for steps, by_settings in sorted(losses.items()):
            seed_sets = {tuple(sorted(by_seed)) for by_seed in by_settings.values()}
            for seeds in sorted(seed_sets, key=lambda seeds: (len(seeds), seeds)):
                tried = {s: by for s, by in by_settings.items() if {*seeds} <= by.keys()}
                means = {s: float(np.mean([by[seed] for seed in seeds])) for s, by in tried.items()}
                result.append(Round(steps, seeds, means))
        return result

    def best(self) -> list[Settings]:
        """Return the settings with the lowest mean loss in the last round; [] if each has a run that
        diverged."""
        means = self.rounds()[-1].means if self.trials else {}
        lowest = min(means.values(), default=math.inf)
        return [settings for settings, mean in means.items() if mean == lowest < math.inf]


def find_arms(families: Sequence[Family], roles: Roles) -> list[Arm]:
    trials: dict[str, list[Run]] = defaultdict(list)
    borrowed: dict[str, list[Run]] = defaultdict(list)
    arms = []
    for runs, by_likeness in ((roles.trials, trials), (roles.borrowed, borrowed)):
        for run in runs:
            by_likeness[roles.likeness(run)].append(run)
    for family in families:
        compared = defaultdict(list)  # several if the family averages over a key
        for run in family.runs:
            compared[roles.likeness(run)].append(run)
        arms += [Arm(family.keys, runs, trials[k], borrowed[k], roles) for k, runs in compared.items()]
    return arms
