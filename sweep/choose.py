"""Choose the settings of each arm of a fair comparison: in rounds of trials, of which the best go on.

Settings are chosen by val/select_loss, the loss on the first half of the validation split.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from comparison.roles import Score, score
from sweep.job import Job
from sweep.progress import RESULTS
from sweep.trials import Round, Settings

Arm = tuple[str, ...]  # overrides


def choose(
    run: Callable[[list[Arm]], list[Job]],
    arms: Sequence[Arm],
    settings: Sequence[Settings],
    rounds: Sequence[Round],
    seeds: list[str],
    steps: int,
) -> tuple[list[Job], dict[Arm, Settings]]:
    """Return the jobs of all rounds, and the best settings of each arm: those at which the fewest runs
    diverged; among these, those with the lowest mean loss of the others. If a job fails, its round is the
    last, and the settings are void."""
    all_jobs: list[Job] = []
    left: Mapping[Arm, list[Settings]] = {arm: [*settings] for arm in arms}
    scores: dict[tuple[Arm, Settings], Score] = {}
    for index, round_ in enumerate(rounds, 1):
        length, used = max(1, round(round_.steps * steps)), seeds[: round_.seeds]
        left = {arm: best[: round_.settings_left(len(settings))] for arm, best in left.items()}
        print(f"\ntuning, round {index} of {len(rounds)}: {length:,} steps, {' '.join(used)}")
        trials = {
            (*arm, *tried, f"train.steps={length}", seed): (arm, tried)
            for arm, best in left.items()
            for tried in best
            for seed in used
        }
        jobs = run([*trials])
        all_jobs += jobs
        if any(job.outcome()[0] not in RESULTS for job in jobs):
            return all_jobs, {}
        losses, left = defaultdict(list), defaultdict(list)
        for job in jobs:
            losses[trials[job.overrides]].append(job.select_loss())
        scores = {trial: score(values) for trial, values in losses.items()}
        for arm, tried in sorted(scores, key=lambda trial: scores[trial]):
            left[arm].append(tried)
    chosen = {arm: best[0] for arm, best in left.items()}
    for arm, title in titles(arms).items():
        diverged, mean = scores[arm, chosen[arm]]
        remark = f"; {diverged} diverged" if diverged else ""
        print(f"  {title}: {' '.join(chosen[arm])} (val/select_loss {mean:.4f}{remark})")
    return all_jobs, chosen


def titles(arms: Sequence[Arm]) -> dict[Arm, str]:
    """Return a title of each arm, such as ``layernorm pre model.qk_norm=same``: its norm, its placement, and
    the overrides that not all arms share."""
    shared = set.intersection(*map(set, arms))

    def words(arm: Arm) -> Iterator[str]:
        for override in arm:
            key, _, value = override.partition("=")
            if key in ("norm", "placement"):
                yield value
            elif override not in shared:
                yield override

    return {arm: " ".join(words(arm)) for arm in arms}
