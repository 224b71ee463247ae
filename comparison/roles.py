"""Sort runs by what they are for in a fair comparison: compared, trials that chose settings, or borrowed, at
the settings of another arm.

A run of before there were studies records what it is for, and which trials chose the settings of which arm. A
setting is a learning rate, or a value of each key that a sweep tuned.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from comparison import groups as grouping
from comparison.groups import RATE, Keys, title
from comparison.load import Run
from comparison.rates import LOSS, Family
from comparison.run_files import SELECT, Role

Settings = tuple[object, ...]  # the value of each tuned key
Score = tuple[int, float]  # how many trials diverged, and the mean loss of the others; less is better


def score(losses: Iterable[float]) -> Score:
    """Return the score of settings from the losses of their trials, infinite for those that diverged."""
    values = [*losses]
    finished = [loss for loss in values if math.isfinite(loss)]
    return len(values) - len(finished), fmean(finished) if finished else math.inf


@dataclass(frozen=True)
class Round:
    """Trials of the same length on the same seeds, with the score of each of their settings."""

    steps: int
    seeds: tuple[int, ...]
    scores: dict[Settings, Score]


@dataclass
class Roles:
    """The runs by what they are for.

    Attributes:
        keys: the tuned keys, the learning rate first.
        tuned: the hash of a group -> the keys that were tuned for its runs; a sweep may tune a key by which
            the arms of another sweep differ.
        compared: also runs outside of fair comparisons.
        trials: runs by which the settings of the compared runs were chosen.
        borrowed: runs of an arm at another arm's settings.
        others: runs of another tuning of an arm, and runs of a tuned arm at settings that nobody chose.
        pending: trials of tunings that have no compared run yet.
        tunings: the hashes of the arms' tunings that count.
    """

    keys: list[str]
    tuned: dict[str, frozenset[str]] = field(default_factory=dict)
    tunings: set[str] = field(default_factory=set)
    compared: list[Run] = field(default_factory=list)
    trials: list[Run] = field(default_factory=list)
    borrowed: list[Run] = field(default_factory=list)
    others: list[Run] = field(default_factory=list)
    pending: list[Run] = field(default_factory=list)

    @property
    def are_tuned(self) -> bool:
        return any(run.roles for run in self.compared)

    def settings(self, run: Run) -> Settings:
        return tuple(run.config.get(key) for key in self.keys)

    def likeness(self, run: Run, tuned: frozenset[str] | None = None) -> str:
        """Return a text that is the same for runs that differ only in settings, length and seed: in ``tuned``
        keys, by default those that were tuned for the run."""
        tuned_keys = self.tuned.get(run.group, self.keys) if tuned is None else tuned
        ignored = {"train.steps", "seed", *tuned_keys}
        compared = (key for key in run.config if key not in ignored and grouping.is_compared(key))
        return repr(sorted((key, run.config[key]) for key in compared if not key.startswith("data.")))

    def likenesses(self, run: Run) -> set[str]:
        """Return the likenesses of the arms of which a run may be one."""
        if run.group in self.tuned:
            return {self.likeness(run)}
        return {self.likeness(run, tuned) for tuned in {*self.tuned.values()}}

    def tunings_of(self, runs: Iterable[Run]) -> set[str]:
        return {role["tuning"] for run in runs for role in run.roles} & self.tunings

    def showing(self, compared: Sequence[Run]) -> "Roles":
        """Return the roles of some of the compared runs, and of the runs that have to do with them."""
        arms = {self.likeness(run) for run in compared}
        others = [run for run in self.others if self.likenesses(run) & arms]
        trials, borrowed = (self.related(compared, runs) for runs in (self.trials, self.borrowed))
        return replace(self, compared=[*compared], trials=trials, borrowed=borrowed, others=others)

    def related(self, compared: Sequence[Run], runs: Iterable[Run]) -> list[Run]:
        """Return the runs that have a tuning in common with the compared ones."""
        tunings = self.tunings_of(compared)
        return [run for run in runs if self.tunings_of([run]) & tunings]


def by_role(runs: Sequence[Run]) -> Roles:
    """Sort runs by what they are for. If an arm was tuned more than once, the tuning that tried the most
    settings counts; of several, the newest."""
    tuned = dict.fromkeys(key for run in runs for role in run.roles for key in role["keys"])
    result = Roles([RATE, *(key for key in tuned if key != RATE)])
    for run in runs:
        if own := {key for role in run.roles for key in role["keys"]}:
            result.tuned[run.group] = result.tuned.get(run.group, frozenset({RATE})) | own
    tried: dict[str, set[Settings]] = defaultdict(set)
    for run in runs:
        for role in run.roles:
            if role["role"] == "trial":
                tried[role["tuning"]].add(result.settings(run))
    by_arm: dict[tuple[str, int], list[Role]] = defaultdict(list)  # arm and length -> roles of compared runs
    for run in runs:
        arm = result.likeness(run), run.config["train.steps"]
        by_arm[arm] += [role for role in run.roles if role["role"] == "compared"]
    best = {
        arm: max(roles, key=lambda role: (len(tried[role["tuning"]]), role["written"]))
        for arm, roles in by_arm.items()
        if roles
    }
    result.tunings = {role["tuning"] for role in best.values()}
    ended = {role["tuning"] for roles in by_arm.values() for role in roles}
    names = [{role["role"] for role in run.roles if role["tuning"] in result.tunings} for run in runs]
    chosen = {run.group for run, own_roles in zip(runs, names, strict=True) if "compared" in own_roles}
    for run, own_roles in zip(runs, names, strict=True):
        is_trial = any(role["role"] == "trial" for role in run.roles)
        is_more_seeds = run.group in chosen and not is_trial
        own_arms = {(likeness, run.config["train.steps"]) for likeness in result.likenesses(run)}
        is_apart = not run.roles and not own_arms & best.keys()
        if "compared" in own_roles or is_more_seeds or is_apart:
            result.compared.append(run)
        elif "trial" in own_roles:
            result.trials.append(run)
        elif "borrowed" in own_roles:
            result.borrowed.append(run)
        elif is_trial and not any(role["tuning"] in ended for role in run.roles):
            result.pending.append(run)
        else:
            result.others.append(run)
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

    def tuned_settings(self, settings: Settings) -> tuple[tuple[str, object], ...]:
        """Return the keys that were tuned for this arm, with their values in ``settings``."""
        tuned = self.roles.tuned.get(self.trials[0].group, frozenset(self.roles.keys))
        return tuple(
            (key, value) for key, value in zip(self.roles.keys, settings, strict=True) if key in tuned
        )

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
                scores = {s: score(by[seed] for seed in seeds) for s, by in tried.items()}
                result.append(Round(steps, seeds, scores))
        return result

    def best(self) -> list[Settings]:
        """Return the settings with the best score in the last round; several at a tie."""
        scores = self.rounds()[-1].scores if self.trials else {}
        return [settings for settings, value in scores.items() if value == min(scores.values())]


def find_arms(families: Sequence[Family], roles: Roles) -> list[Arm]:
    arms = []
    for family in families:
        compared = defaultdict(list)  # several if the family averages over a key
        for run in family.runs:
            compared[roles.likeness(run)].append(run)
        for runs in compared.values():
            trials, borrowed = (roles.related(runs, each) for each in (roles.trials, roles.borrowed))
            arms.append(Arm(family.keys, runs, trials, borrowed, roles))
    return arms
