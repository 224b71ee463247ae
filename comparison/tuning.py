"""Tell how learning rates were chosen, which decides what a table can mean: verified from the runs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from comparison import groups as grouping
from comparison.groups import RATE, Group, title
from comparison.load import Run
from comparison.rates import Family, mean_losses


@dataclass
class Arm:
    """Compared runs that differ only in rate, length and seed, and the tuning runs that chose their rate."""

    title: str
    compared: list[Run]
    trials: list[Run]


def tuning_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the tuning runs, by which the learning rates of other runs were chosen. These other runs have
    ``tuned`` in their config; a tuning run differs from one of them only in rate, length and seed."""
    final = {likeness(run) for run in runs if is_tuned(run)}
    return [run for run in runs if not run.config.get("tuned") and likeness(run) in final]


def is_tuned(run: Run) -> bool:
    return RATE in (run.config.get("tuned") or [])


def likeness(run: Run) -> str:
    """Return a text that is the same for runs that differ only in rate, length and seed."""
    ignored = (RATE, "train.steps", "seed")
    return repr([(k, v) for k, v in run.config.items() if k not in ignored and grouping.is_compared(k)])


def sentences(families: Sequence[Family], tuning: Sequence[Run]) -> list[str]:
    """Return a sentence on how the rates of the compared families were chosen, and one on the tuning runs."""
    arms = find_arms(families, tuning)
    if not any(is_tuned(run) for arm in arms for run in arm.compared):
        return [chosen_here(families)]
    if not (phrases := doubts(arms)):
        lines = ["Each group is at its own best learning rate, chosen by other runs on other seeds."]
    else:
        start = "Not each group is at its own best learning rate, chosen by other runs on other seeds"
        lines = [f"{start} (confounded): {'; '.join(phrases)}."]
    if tuning:
        shortest = min(run.config["train.steps"] for arm in arms for run in arm.compared)
        are_shorter = all(run.config["train.steps"] < shortest for run in tuning)
        chose = all({*rates(arm.compared)} <= {*best_of(arm.trials)} for arm in arms if arm.trials)
        what = "which chose the rates," if chose else "which differ in rate, length or seed,"
        lines.append(f"{len(tuning)} {'shorter ' if are_shorter else ''}runs, {what} are not compared.")
    return lines


def find_arms(families: Sequence[Family], tuning: Sequence[Run]) -> list[Arm]:
    trials, arms = defaultdict(list), []
    for run in tuning:
        trials[likeness(run)].append(run)
    for family in families:
        compared = defaultdict(list)  # several if the family averages over a key
        for run in [run for group in family.rates.values() for run in group.runs]:
            compared[likeness(run)].append(run)
        arms += [Arm(title(family.keys), runs, trials[like]) for like, runs in compared.items()]
    return arms


def doubts(arms: Sequence[Arm]) -> list[str]:
    """Return phrases that say why the arms are not each at their own best rate, chosen by other runs on other
    seeds, by equal trials. [] if they are: then every part was verified."""
    titles: dict[str, list[str]] = defaultdict(list)  # phrase -> the titles of its arms
    for arm in arms:
        compared, best = rates(arm.compared), best_of(arm.trials)
        shared = sorted({run.seed for run in arm.compared} & {run.seed for run in arm.trials})
        lengths = {run.config["train.steps"] for run in arm.trials}
        if len(compared) > 1:
            titles["was chosen by the compared runs"].append(arm.title)
        elif not arm.trials:
            is_elsewhere = all(map(is_tuned, arm.compared))
            phrase = "was chosen by runs that are not here" if is_elsewhere else "was not tuned"
            titles[phrase].append(arm.title)
        elif len(lengths) == 1 and not best:
            titles["was not chosen: at every rate a tuning run diverged"].append(arm.title)
        elif len(lengths) == 1 and compared[0] not in best:
            titles[f"is {compared[0]:g}, but {best[0]:g} was the best of its tuning runs"].append(arm.title)
        if shared:
            seeds = grouping.join(map(str, shared))
            titles[f"was chosen on seeds that are also compared ({seeds})"].append(arm.title)
        if len(lengths) > 1:
            titles["was chosen by runs of several lengths"].append(arm.title)
    lines = [f"the rate of {grouping.join(dict.fromkeys(names))} {line}" for line, names in titles.items()]
    return lines + unequal_trials([(arm.title, arm.trials) for arm in arms if arm.trials])


def unequal_trials(trials: Sequence[tuple[str, Sequence[Run]]]) -> list[str]:
    """Return a phrase with the trials (rates, seeds, steps) of each arm; [] if all arms had the same."""
    arms: dict[str, list[str]] = defaultdict(list)  # the trials, in words -> the titles of their arms
    for name, runs in trials:
        by_rate, rates_of = defaultdict(list), defaultdict(list)
        for run in sorted(runs, key=lambda run: (run.config[RATE], run.seed, run.config["train.steps"])):
            by_rate[run.config[RATE]].append(run)
        for rate, members in by_rate.items():
            seeds = grouping.join(dict.fromkeys(str(run.seed) for run in members))
            steps = grouping.join(dict.fromkeys(f"{run.config['train.steps']:,}" for run in members))
            rates_of[f"({steps} steps, seed {seeds})"].append(f"{rate:g}")
        arms[", ".join(f"{grouping.join(same)} {how}" for how, same in rates_of.items())].append(name)
    listed = (f"{words} for {grouping.join(dict.fromkeys(names))}" for words, names in arms.items())
    return ["the arms were tuned by unequal trials: " + ", but ".join(listed)] if len(arms) > 1 else []


def rates(runs: Sequence[Run]) -> list[float]:
    return sorted({float(run.config[RATE]) for run in runs})


def best_of(trials: Sequence[Run]) -> list[float]:
    """Return the rates with the lowest mean loss of tuning runs; [] if a seed diverged at every rate."""
    groups = {}
    for rate in rates(trials):
        runs = [run for run in trials if run.config[RATE] == rate]
        groups[rate] = Group({}, runs, {}, {run.seed for run in runs if run.diverged})
    means = mean_losses(groups)
    return [rate for rate, mean in means.items() if mean == min(means.values())]


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
    trials = [(title(f.keys), [run for group in f.rates.values() for run in group.runs]) for f in families]
    unequal = "".join(f" Confounded: {phrase}." for phrase in unequal_trials(trials))
    return (
        f"Each group is at its own best learning rate of {rate_list}, by the mean over seeds. The compared "
        "runs chose it themselves, so there is no verdict: choose rates on other seeds, as "
        f"experiment=fair_ablation does.{unequal}"
    )
