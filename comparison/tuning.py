"""Tell how settings were chosen, which decides what a table can mean: verified from the runs.

A setting is a learning rate, or a value of each key that a sweep tuned (sweep/stages.py).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from comparison import groups as grouping
from comparison.groups import RATE, Keys, title
from comparison.load import Run
from comparison.rates import LOSS, Family

SELECT, REPORT = "val/select_loss", "val/report_loss"  # the losses on the halves of the validation split
Settings = tuple[object, ...]  # the value of each tuned key


@dataclass
class Roles:
    """What each run is for.

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


def roles(runs: Sequence[Run]) -> Roles:
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

    def rounds(self) -> list[dict[Settings, float]]:
        """Return the mean loss of each setting, infinite if a run diverged, in trials of each length,
        ascending."""
        losses: dict[int, dict[Settings, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in self.trials:
            loss = math.inf if run.diverged else run.last(self.criterion)
            losses[run.config["train.steps"]][self.roles.settings(run)].append(loss)
        return [{s: float(np.mean(x)) for s, x in losses[steps].items()} for steps in sorted(losses)]

    def best(self) -> list[Settings]:
        """Return the settings with the lowest mean loss in the longest trials; [] if each has a run that
        diverged."""
        means = self.rounds()[-1] if self.trials else {}
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


def sentences(families: Sequence[Family], arms: Sequence[Arm], roles: Roles, metric: str) -> list[str]:
    """Return a sentence on how the settings of the compared runs were chosen, and one on the trials."""
    if not any(run.config.get("tuned") for run in roles.compared):
        return [chosen_here(families)]
    what = "Each group is at its own best " + ("settings" if len(roles.keys) > 1 else "learning rate")
    phrases = doubts(arms, metric)
    if phrases:
        lines = [f"{what.replace('Each', 'Not each', 1)} (confounded): {'; '.join(phrases)}."]
    else:
        text = " and on the other half of the validation split" if metric == REPORT else ""
        lines = [f"{what}, chosen by other runs on other seeds{text}."]
    if roles.trials:
        shortest = min(run.config["train.steps"] for run in roles.compared)
        are_shorter = all(run.config["train.steps"] < shortest for run in roles.trials)
        chose = all({*arm.settings} <= {*arm.best()} for arm in arms if arm.trials)
        which = "which chose the settings," if chose else "which differ in settings, length or seed,"
        count = f"{len(roles.trials)} {'shorter ' if are_shorter else ''}runs"
        lines.append(f"{count}, {which} are not compared.")
    return lines


def doubts(arms: Sequence[Arm], metric: str) -> list[str]:
    """Return phrases that say why the arms are not each at their own best settings, chosen by other runs on
    other seeds and other text, by equal trials. [] if they are: then every part was verified."""
    titles: dict[str, list[str]] = defaultdict(list)  # phrase -> the titles of its arms
    for arm in arms:
        settings, best = arm.settings, arm.best()
        shared = sorted({run.seed for run in arm.compared} & {run.seed for run in arm.trials})
        if len(settings) > 1:
            titles["were chosen by the compared runs"].append(arm.title)
        elif not arm.trials:
            is_elsewhere = all(run.config.get("tuned") for run in arm.compared)
            phrase = "were chosen by runs that are not here" if is_elsewhere else "were not tuned"
            titles[phrase].append(arm.title)
        elif not best:
            titles["were not chosen: at each, a trial diverged"].append(arm.title)
        elif settings[0] not in best:
            phrase = f"are {in_words(settings[0])}, but {in_words(best[0])} was the best of its trials"
            titles[phrase].append(arm.title)
        if arm.trials and metric.startswith("val/") and (arm.criterion, metric) != (SELECT, REPORT):
            titles[f"were chosen on text on which {metric} is measured"].append(arm.title)
        if shared:
            seeds = grouping.join(map(str, shared))
            titles[f"were chosen on seeds that are also compared ({seeds})"].append(arm.title)
        if not all(went_on_by_rank(*pair) for pair in pairwise(arm.rounds())):
            titles["were chosen by long trials, but not of the best of the shorter ones"].append(arm.title)
    lines = [f"the settings of {grouping.join(dict.fromkeys(names))} {x}" for x, names in titles.items()]
    return lines + unequal_trials([arm for arm in arms if arm.trials])


def in_words(settings: Settings) -> str:
    return " ".join(grouping.as_text(value) for value in settings)


def went_on_by_rank(shorter: dict[Settings, float], longer: dict[Settings, float]) -> bool:
    """Return True if the settings of the longer trials are the best ones of the shorter trials."""
    left_out = [mean for settings, mean in shorter.items() if settings not in longer]
    is_known = longer.keys() <= shorter.keys()
    return is_known and max(shorter[s] for s in longer) <= min(left_out, default=math.inf)


def unequal_trials(arms: Sequence[Arm]) -> list[str]:
    """Return a phrase with the trials of each arm; [] if all arms had equal trials: the same settings in the
    shortest ones, and as many in each of the longer ones, on the same seeds."""
    titles: dict[object, list[str]] = defaultdict(list)
    words: dict[object, str] = {}
    for arm in arms:
        seeds, tried = defaultdict(set), defaultdict(list)  # by length and settings; by length and seeds
        for run in arm.trials:
            seeds[run.config["train.steps"], arm.roles.settings(run)].add(run.seed)
        for (steps, settings), values in sorted(seeds.items(), key=repr):
            tried[steps, tuple(sorted(values))].append(settings)
        shortest = min(steps for steps, _ in tried)
        signature = frozenset(
            (*key, frozenset(values) if key[0] == shortest else len(values)) for key, values in tried.items()
        )
        titles[signature].append(arm.title)
        listed = (
            f"{grouping.join(map(in_words, settings)) if len(arm.roles.keys) == 1 else len(settings)} "
            f"({steps:,} steps, seed {grouping.join(map(str, values))})"
            for (steps, values), settings in tried.items()
        )
        words[signature] = ", ".join(listed)
    described = (f"{words[key]} for {grouping.join(dict.fromkeys(names))}" for key, names in titles.items())
    return ["the arms were tuned by unequal trials: " + ", but ".join(described)] if len(titles) > 1 else []


def edges(arm: Arm) -> list[str]:
    """Return warnings about chosen values that are the lowest or highest tried; of one tuned key, see
    comparison/doubts.py."""
    lines = []
    if len(arm.roles.keys) > 1 and arm.trials and len(arm.settings) == 1:
        for i, (key, value) in enumerate(zip(arm.roles.keys, arm.settings[0], strict=True)):
            tried = {arm.roles.settings(run)[i] for run in arm.trials}
            if all(isinstance(each, float) for each in tried) and len(tried) > 1:
                end = {min(tried): "lowest", max(tried): "highest"}.get(value)  # type: ignore[type-var]
                if end:
                    lines.append(f"its {key}, {value:g}, is the {end} tried: a better one may lie beyond it")
    return lines


def chosen_here(families: Sequence[Family]) -> str:
    """Return the sentence for runs none of which says that other runs chose its rate."""
    all_rates = sorted({rate for family in families for rate in family.rates})
    rate_list = grouping.join(f"{rate:g}" for rate in all_rates)
    if all(len(family.rates) == 1 for family in families):
        if len(all_rates) > 1:
            return f"Confounded: each group has one learning rate, and they differ ({rate_list})."
        return (
            f"All groups have one learning rate, {all_rates[0]:g}: at each group's own best rate the "
            "order may differ (confounded)."
        )
    only_rates = Roles([RATE])
    arms = [Arm(family.keys, family.runs, family.runs, [], only_rates) for family in families]
    unequal = "".join(f" Confounded: {phrase}." for phrase in unequal_trials(arms))
    return (
        f"Each group is at its own best learning rate of {rate_list}, by the mean over seeds. The compared "
        "runs chose it themselves, so there is no verdict: choose rates on other seeds, as "
        f"experiment=fair_ablation does.{unequal}"
    )
