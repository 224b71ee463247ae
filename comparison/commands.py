"""Commands that compare runs, train them again, or train the runs that are missing for a verdict."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cli.errors import CONF
from comparison.comparable import kind_of, selecting, trained_tokens
from comparison.find import find_runs
from comparison.groups import Group
from comparison.load import Run, UnreadableError, naming_errors, read_settings, valid
from comparison.roles import by_role

MAX_SEEDS = 20  # the most seeds that a command adds, besides those that were planned
# Defaults that changed when model.init_scale became auto: the words of an earlier run do not say them.
CHANGED_DEFAULTS = (
    "train.steps",
    "train.eval_every",
    "optim.learning_rate",
    "schedule.warmup_fraction",
    "model.init_scale",
)


def compare(runs: Collection[Path]) -> str:
    """Return the command that compares these runs, the longest of them if they differ in length, and leaves
    out runs in the same folders that cannot be compared with them; "" if these are trials alone."""
    folders = sorted({str(run.parent) for run in runs})
    roles = by_role([run for folder in find_runs(folders) for run in settings_of(folder)])
    # tuned runs of the same arms, in place of which compare.py leaves these out
    if any(run.folder in runs and not run.roles for run in roles.others):
        folders = sorted(map(str, runs))
        roles = by_role([run for folder in runs for run in settings_of(folder)])
    wanted = [run.config for run in roles.compared if run.folder in runs]
    if not wanted:
        return ""
    length = max(map(trained_tokens, wanted))
    longest = [config for config in wanted if trained_tokens(config) == length]
    kinds = [kind_of(config) for config in longest]
    unlike = [run.config for run in roles.compared if kind_of(run.config) not in kinds]
    return shlex.join(["python", "compare.py", *folders]) + (selecting(longest, unlike) or "")


def settings_of(folder: Path) -> Iterator[Run]:
    """Yield a run with its settings and environment alone, unless its folder is damaged."""
    with suppress(UnreadableError), naming_errors():
        config, environment = read_settings(folder)
        if environment["group"]:
            yield Run(folder, valid(config), {}, environment, {}, {}, {})


def rerun(run: Run) -> str:
    """Return the command that trains this run and no other; "" if it was published without."""
    if "overrides" not in run.environment:
        return ""
    return shlex.join(["python", "train.py", *overrides_of(run)])


def more_seeds(groups: Sequence[Group], least: int, planned: Collection[int] = ()) -> str:
    """Return the command that trains the missing seeds, so that all groups have the same: those that were
    planned, and at least ``least``, or 3; "" if no seed is missing or a group has no single command."""
    # a run that ended without a value of the metric would end so again
    spent = {run.seed for group in groups for run in group.runs if run.seed not in group.seeds}
    seeds = sorted({*planned}.union(*(group.seeds for group in groups)) - spent)
    count = min(max(least, 3), len(seeds) + MAX_SEEDS)
    trials = {seed for group in groups for run in group.runs for role in run.roles for seed in role["seeds"]}
    next_seed = max([*seeds, *spent, *trials], default=-1) + 1
    seeds += range(next_seed, next_seed + max(0, count - len(seeds)))
    commands = []
    for group in groups:
        missing = [str(seed) for seed in seeds if seed not in group.seeds]
        run = group.runs[0]
        if "overrides" not in run.environment or len({run.group for run in group.runs}) > 1:
            return ""
        if any(not (CONF / "experiment" / f"{name}.yaml").exists() for name in presets(overrides_of(run))):
            return ""  # one of an earlier version
        arguments = [word for word in overrides_of(run) if word.partition("=")[0] not in ("seed", "fresh")]
        if missing:
            commands.append(shlex.join(["python", "train.py", "-m", *arguments, f"seed={','.join(missing)}"]))
    return " && ".join(commands)


def overrides_of(run: Run) -> list[str]:
    """Return the overrides of a run; of one whose init_scale is a number, also with what may
    have been a default of an earlier version."""
    overrides: list[str] = run.environment["overrides"]
    earlier: dict[str, Any] = {"model.init_scale": 1.0} | run.config  # the first runs had no such key
    if earlier["model.init_scale"] == "auto":
        return overrides
    given = {word.partition("=")[0].lstrip("+") for word in overrides}
    return overrides + [
        f"{key}={earlier[key]}" for key in CHANGED_DEFAULTS if key in earlier and key not in given
    ]


def presets(arguments: Sequence[str]) -> list[str]:
    return [word.removeprefix("experiment=") for word in arguments if word.startswith("experiment=")]
