"""Commands that compare runs, train them again, or train the runs that are missing for a verdict."""

import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from comparison.comparable import kind_of, selecting
from comparison.find import find_runs
from comparison.groups import Group
from comparison.load import REQUIRED, Run, UnreadableError, naming_errors, read_config

MAX_SEEDS = 20  # the most seeds that a command proposes


def compare(runs: Collection[Path]) -> str:
    """Return the command that compares these runs, but leaves out those in the same folders that are longer,
    shorter or of another text."""
    folders = sorted({str(run.parent) for run in runs})
    configs = {}
    for folder in find_runs(folders):
        with suppress(UnreadableError), naming_errors():
            configs[folder] = REQUIRED.validate_python(read_config(folder))
    wanted = [config for folder, config in configs.items() if folder in runs]
    steps = max((config["train.steps"] for config in wanted), default=0)  # those of trials are fewer
    wanted = [config for config in wanted if config["train.steps"] == steps]
    kinds = [kind_of(config) for config in wanted]
    others = [c for folder, c in configs.items() if folder not in runs and kind_of(c) not in kinds]
    return shlex.join(["python", "compare.py", *folders]) + (selecting(wanted, others) or "")


def rerun(run: Run) -> str:
    """Return the command that trains this run and no other; "" if it was published without."""
    if "overrides" not in run.environment:
        return ""
    arguments = run.environment["overrides"]
    mode = ["hydra.mode=RUN"] if has_preset(arguments) else []
    return shlex.join(["python", "train.py", *arguments, *mode])


def more_seeds(groups: Sequence[Group], least: int) -> str:
    """Return the command that trains the missing seeds, so that all groups have the same, in number at least
    ``least`` (3 to MAX_SEEDS); "" if no seed is missing or a group has no single command."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    count = min(max(least, 3), MAX_SEEDS)
    trials = {seed for group in groups for run in group.runs for role in run.roles for seed in role["seeds"]}
    next_seed = max([*seeds, *trials], default=-1) + 1
    seeds += range(next_seed, next_seed + max(0, count - len(seeds)))
    commands = []
    for group in groups:
        missing = [str(seed) for seed in seeds if seed not in group.seeds]
        overrides = group.runs[0].environment.get("overrides")
        if not overrides or len({run.group for run in group.runs}) > 1:
            return ""
        arguments = [word for word in overrides if word.partition("=")[0] not in ("seed", "fresh")]
        arguments += ["hydra.sweeper.tune=null", "hydra.sweeper.arms=[]"] if has_preset(arguments) else []
        if missing:
            commands.append(shlex.join(["python", "train.py", "-m", *arguments, f"seed={','.join(missing)}"]))
    return " && ".join(commands)


def has_preset(arguments: Sequence[str]) -> bool:
    """Return True if the arguments name a preset, which may itself be a sweep."""
    return any(argument.startswith("experiment=") for argument in arguments)
