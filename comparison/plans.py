"""Read the plans of sweeps back, from runs of before there were studies: how many pairs of runs were
planned before there was a result, and how many arms are compared.

A verdict at a planned number of seeds, and a verdict that looks again whenever a seed is added, are different
tests (comparison/verdicts.py). A plan counts only if no verdict was possible when it was written.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comparison.load import Run

USUAL = {"norm": "layernorm", "placement": "pre", "model.embedding_norm": "none", "model.qk_norm": "none"}
# An arm that starts otherwise, as its paper does, is compared with a baseline that does, or else with the
# usual one.
STARTS = {"model.init": "gpt2", "model.depth_scaled_init": "auto"}
MIN_PAIRS = 3  # below it, never a verdict
Plan = dict[str, Any]


def first_plan(runs: Iterable["Run"]) -> Plan | None:
    """Return the plan of an arm that was written first, if its runs carry one; of several, as an arm that is
    averaged over a key has, the one with the most seeds that had ended."""
    plans = [run.environment["plan"] for run in runs if run.environment.get("plan")]
    return min(plans, key=lambda plan: (plan["written"], -len(plan["ended_before"])), default=None)


def planned_seeds(arm: Iterable["Run"], baseline: Iterable["Run"]) -> list[int]:
    """Return the seeds by which these two were to be compared, without those whose pairs had ended before the
    plan; [] without a plan, or if the ended pairs or the rest are too few for a verdict."""
    plans = [plan for plan in (first_plan(arm), first_plan(baseline)) if plan]
    if not plans:
        return []
    last = max(plan["written"] for plan in plans)
    ended = set.intersection(*({*plan["ended_before"]} for plan in plans if plan["written"] == last))
    seeds = set.intersection(*({*plan["seeds"]} for plan in plans)) - ended
    return sorted(seeds) if len(ended) < MIN_PAIRS <= len(seeds) else []


def in_order(seeds: Iterable[int], runs: Iterable["Run"]) -> list[int]:
    """Return seeds in the order in which they were trained, as far as plans tell, else by number."""
    plans: dict[int, str] = {}  # seed -> when its last plan was written
    earlier: set[int] = set()
    for run in runs:
        if plan := run.environment.get("plan"):
            plans[run.seed] = max(plans.get(run.seed, ""), str(plan["written"]))
            earlier |= {*plan["ended_before"]}
    without_plan = {seed: "" if seed in earlier else "later" for seed in seeds}  # digits come before letters
    return sorted(without_plan, key=lambda seed: (plans.get(seed, without_plan[seed]), seed))


def family_size(
    arms: Sequence[Sequence["Run"]], baselines: Sequence[Sequence["Run"]], shown: int, is_chosen: bool
) -> int:
    """Return the number of comparisons for which the verdicts hold together.

    All arms of all plans count once, also those that are not shown. If a baseline is another than the planned
    one, it may have been chosen after a look, so all pairs of arms count.

    Args:
        arms: the runs of each arm, baselines included.
        baselines: the runs of each baseline.
        shown: the number of comparisons in the table.
        is_chosen: the user named another baseline than the usual one.
    """
    plans = [run.environment["plan"] for runs in arms for run in runs if run.environment.get("plan")]
    planned = {arm for plan in plans for arm in plan["arms"]}
    count = len(planned)
    for runs in arms:
        trained = {(plan["arm"], run.seed) for run in runs if (plan := run.environment.get("plan"))}
        # several hashes at one seed: a mean over a key; at other seeds: added by a sweep of other keys
        at_once = max(Counter(seed for _, seed in trained).values(), default=1)
        count += at_once - len({arm for arm, _ in trained})
    if is_chosen or any(is_other_baseline(runs) for runs in baselines):
        return max(shown, count * (count - 1) // 2)
    return max(shown, count - len(baselines))


def is_other_baseline(runs: Sequence["Run"]) -> bool:
    """Return True if a baseline is not the one that the plan of its runs names."""
    plan = first_plan(runs)
    planned: dict[str, str] = plan["baseline"] if plan else {}
    return any(runs[0].config[key] != value for key, value in planned.items())
