"""Commands that make runs: those that were compared, and those that are missing."""

import shlex
from collections.abc import Sequence

from comparison.groups import Group
from comparison.load import Run

MAX_SEEDS = 20  # that are proposed


def rerun(run: Run) -> str:
    """Return the command that makes this run alone."""
    arguments = run.environment.get("overrides") or []
    return shlex.join(["python", "train.py", *arguments, *["hydra.mode=RUN"] * is_preset(arguments)])


def more_seeds(groups: Sequence[Group], needed: tuple[int, int] | None) -> str:
    """Return the command that brings groups to the same seeds: the fewest that may settle the question, 3 to
    MAX_SEEDS. Empty for averages over a key, and if the runs do not say how they were made."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    target = min(max(needed[0] if needed else 0, 3), MAX_SEEDS)
    first = max(seeds, default=-1) + 1
    wanted = seeds + list(range(first, first + max(0, target - len(seeds))))
    commands = []
    for group in groups:
        missing = [str(seed) for seed in wanted if seed not in group.seeds]
        overrides = group.runs[0].environment.get("overrides")
        if not overrides or len({run.group for run in group.runs}) > 1:
            return ""
        arguments = [word for word in overrides if word.partition("=")[0] not in ("seed", "fresh")]
        arguments += ["hydra.sweeper.tune=null"] * is_preset(arguments)
        if missing:
            commands.append(shlex.join(["python", "train.py", "-m", *arguments, f"seed={','.join(missing)}"]))
    return " && ".join(commands)


def is_preset(arguments: Sequence[str]) -> bool:
    """Return whether the arguments name a preset, which may be a sweep by itself."""
    return any(argument.startswith("experiment=") for argument in arguments)
