"""Tell how settings were chosen, which decides what a table can mean: verified from the runs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from comparison import groups as grouping
from comparison.groups import RATE
from comparison.load import Run
from comparison.rates import LOSS, Family, has_collapsed
from comparison.roles import Arm, Roles, Round, Settings
from comparison.run_files import REPORT, SELECT


def sentences(
    families: Sequence[Family], arms: Sequence[Arm], roles: Roles, metric: str
) -> tuple[bool, list[str]]:
    """Return whether each arm is at its own best settings, as far as the runs show; and a sentence on how the
    settings of the compared runs were chosen, and one on the trials."""
    if not roles.are_tuned:
        return False, [chosen_here(families)]
    what = "Each group is at its own best " + ("settings" if len(roles.keys) > 1 else "learning rate")
    phrases = doubts(arms, metric)
    if phrases:
        lines = [f"{what.replace('Each', 'Not each', 1)} (confounded): {'; '.join(phrases)}."]
    else:
        text = " and on the other half of the validation split" if metric == REPORT else ""
        tried = len(arms[0].rounds()[0].scores)  # as many for each arm
        lines = [f"{what} of {tried} tried, chosen by other runs on other seeds{text}."]
    if roles.trials:
        shortest = min(run.config["train.steps"] for run in roles.compared)
        are_shorter = all(run.config["train.steps"] < shortest for run in roles.trials)
        chose = all({*arm.settings} <= {*arm.best()} for arm in arms if arm.trials)
        which = "runs, which chose the settings," if chose else "other runs of these arms"
        count = f"{len(roles.trials)} {'shorter ' if are_shorter else ''}"
        lines.append(f"{count}{which} are not compared.")
    return not phrases, lines


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
            is_elsewhere = any(run.roles for run in arm.compared)
            phrase = "were chosen by runs that are not here" if is_elsewhere else "were not tuned"
            titles[phrase].append(arm.title)
        elif settings[0] not in best:
            phrase = f"are {in_words(settings[0])}, but {in_words(best[0])} was the best of its trials"
            titles[phrase].append(arm.title)
        if arm.trials and metric.startswith("val/") and (arm.criterion, metric) != (SELECT, REPORT):
            titles[f"were chosen on text on which {metric} is measured"].append(arm.title)
        if shared:
            seeds = grouping.join(map(str, shared))
            titles[f"were chosen on seeds that are also compared ({seeds})"].append(arm.title)
        if not all(kept_the_best(*pair) for pair in pairwise(arm.rounds())):
            titles["were chosen by later trials, but not of the best of the earlier ones"].append(arm.title)
    lines = [f"the settings of {grouping.join(dict.fromkeys(names))} {x}" for x, names in titles.items()]
    return lines + unequal_trials([arm for arm in arms if arm.trials])


def in_words(settings: Settings) -> str:
    return " ".join(grouping.as_text(value) for value in settings)


def kept_the_best(earlier: Round, later: Round) -> bool:
    """Return True if the settings of the later round are the best ones of the earlier round."""
    if not later.scores.keys() <= earlier.scores.keys():
        return False
    left_out = [value for settings, value in earlier.scores.items() if settings not in later.scores]
    return not left_out or max(earlier.scores[settings] for settings in later.scores) <= min(left_out)


def unequal_trials(arms: Sequence[Arm]) -> list[str]:
    """Return a phrase with the trials of each arm; [] if all arms had equal trials: the same settings in the
    first round, and as many in each later one, of the same length and on the same seeds."""
    by_trials: dict[object, list[Arm]] = defaultdict(list)
    for arm in arms:
        first, *later = arm.rounds()
        counts = [(each.steps, each.seeds, len(each.scores)) for each in later]
        tried = frozenset(map(arm.tuned_settings, first.scores))
        by_trials[first.steps, first.seeds, tried, *counts].append(arm)
    described = []
    for alike in by_trials.values():
        rounds = ", ".join(listed(each, alike[0].roles) for each in alike[0].rounds())
        described.append(f"{rounds} for {grouping.join(dict.fromkeys(arm.title for arm in alike))}")
    unequal = len(by_trials) > 1
    return [f"the arms were tuned by unequal trials: {', but '.join(described)}"] if unequal else []


def listed(round_: Round, roles: Roles) -> str:
    """Return a round in words: its rates, or the number of its settings if more than the rate was tuned."""
    what = str(len(round_.scores))
    if len(roles.keys) == 1:
        what = grouping.join(sorted(map(in_words, round_.scores), key=float))
    return f"{what} ({round_.steps:,} steps, seed {grouping.join(map(str, round_.seeds))})"


def edges(arm: Arm) -> list[str]:
    """Return warnings about chosen values beyond which nothing was tried or every trial failed; of one tuned
    key, see also comparison/doubts.py."""
    lines = []
    if arm.trials and (least := min(arm.rounds()[-1].scores.values())[0]):
        lines.append(f"each setting in its last round has a diverged trial; the chosen one has {least}")
    if len(arm.roles.keys) > 1 and arm.trials and len(arm.settings) == 1:
        for i, (key, value) in enumerate(zip(arm.roles.keys, arm.settings[0], strict=True)):
            tried = [arm.roles.settings(run)[i] for run in arm.trials]
            if all(isinstance(each, float) for each in tried) and len(set(tried)) > 1:
                lines += edges_of_key(key, value, tried, arm.trials)
    return lines


def edges_of_key(key: str, value: Any, tried: Sequence[Any], trials: Sequence[Run]) -> list[str]:
    """Return warnings about a key's chosen value. ``tried``: the value of each trial."""
    best = min((run.last(LOSS) for run in trials if not run.diverged), default=math.nan)
    lines = []
    for sign, end, beyond in ((-1, "lowest", "lower"), (1, "highest", "higher")):
        others = [run for run, each in zip(trials, tried, strict=True) if sign * each > sign * value]
        if not others:
            lines.append(f"its {key}, {value:g}, is the {end} tried: a better one may lie beyond it")
        elif all(run.diverged or has_collapsed(run, best) for run in others):
            failed = "the only trial" if len(others) == 1 else f"all {len(others)} trials"
            lines.append(
                f"its {key}, {value:g}, is the {end} that works: {failed} at a {beyond} one "
                "diverged or collapsed"
            )
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
        f"ablate.py study=fair does.{unequal}"
    )
