"""Commands that make runs: those that were compared, and those that are missing."""

import shlex
from collections.abc import Sequence

from comparison.groups import Group
from comparison.load import Run

MOST = 20  # seeds that are proposed


def again(run: Run) -> str:
    """Makes this run alone."""
    arguments = run.environment.get("overrides") or []
    alone = ["hydra.mode=RUN"] * is_preset(arguments)
    return shlex.join(["python", "train.py", *arguments, *alone])


def more_seeds(groups: Sequence[Group], needed: tuple[int, int] | None) -> str:
    """Brings groups to the same seeds: as many as may settle the question at the least, three, or one more,
    at most MOST. Empty for groups that are averages over a key, or where it is not known how they were
    made."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    target = min(max(needed[0] if needed else 0, 3), MOST)
    first = max(seeds, default=-1) + 1
    wanted = seeds + list(range(first, first + max(0, target - len(seeds))))
    found = []
    for group in groups:
        missing = [str(seed) for seed in wanted if seed not in group.seeds]
        given = group.runs[0].environment.get("overrides")
        if not given or len({run.group for run in group.runs}) > 1:
            return ""
        arguments = [a for a in given if a.partition("=")[0] not in ("seed", "fresh")]
        once = ["hydra.sweeper.tune=null"] * is_preset(arguments)
        if missing:
            seeding = f"seed={','.join(missing)}"
            found.append(shlex.join(["python", "train.py", "-m", *arguments, *once, seeding]))
    return " && ".join(found)


def is_preset(arguments: Sequence[str]) -> bool:
    """Whether they name a preset, which may be a sweep by itself."""
    return any(argument.startswith("experiment=") for argument in arguments)
