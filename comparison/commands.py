"""Commands that compare runs, train them again, or train the runs that are missing for a verdict."""

import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from comparison.comparable import kind_of, selecting, trained_tokens
from comparison.find import find_runs
from comparison.groups import Group
from comparison.load import Config, Run, UnreadableError, naming_errors, read_settings, valid

MAX_SEEDS = 20  # the most seeds that a command proposes


def compare(runs: Collection[Path]) -> str:
    """Return the command that compares these runs, the longest of them if they differ in length, and leaves
    out runs in the same folders that cannot be compared with them."""
    folders = sorted({str(run.parent) for run in runs})
    wanted: list[Config] = []
    others: list[Config] = []
    for folder in find_runs(folders):
        with suppress(UnreadableError), naming_errors():
            config, environment = read_settings(folder)
            roles = {role["role"] for role in environment.get("roles", [])}
            if not roles or "compared" in roles:  # compare.py leaves out trials by itself
                (wanted if folder in runs else others).append(valid(config))
    length = max(map(trained_tokens, wanted), default=0)
    longest = [config for config in wanted if trained_tokens(config) == length]
    kinds = [kind_of(config) for config in longest]
    unlike = [config for config in wanted + others if kind_of(config) not in kinds]
    return shlex.join(["python", "compare.py", *folders]) + (selecting(longest, unlike) or "")


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
