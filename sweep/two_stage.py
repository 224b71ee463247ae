"""A sweep in one stage, or in two: first the value of one key, then runs at each combination's own best.

The second stage has seeds of its own, so the runs that are compared had no part in the choice.
"""

import math
import statistics
from itertools import product

from hydra.core.override_parser.types import Override

from cli import app
from sweep.job import Job
from sweep.progress import ENDS, summary
from sweep.runner import Sweep
from system import launch
from system.errors import ConfigError


def sweep(
    sweep: Sweep,
    preset: list[Override],
    given: list[Override],
    arms: list[list[str]],
    tune: str | None,
    final: list[Override],
) -> None:
    """Do the jobs of a preset and a command line, all of them for each of ``arms``, overrides that go
    together; and with ``tune`` those of a second sweep: for each combination of the other values, at the
    value of ``tune`` that had the lowest mean loss in the first, the runs of ``final``. What is given goes
    before both; its seeds are the first sweep's.

    Raises:
        ConfigError: the second sweep would not be one on other seeds.
        SystemExit: with status 1, where a job failed; all are named before.
    """
    if launch.world_size() > 1:
        raise ConfigError("-m: torchrun is for one run; start a sweep without it, or name one run")
    values, ours = app.alternatives([*preset, *given]), app.alternatives(given)
    second = {k: v for k, v in app.alternatives(final).items() if k == "seed" or k not in ours}
    if tune and tune not in values:
        raise ConfigError(f"hydra.sweeper.tune: {tune} has no values to choose from; give {tune}=…,…")
    if tune and (same := {*values.get("seed", ["seed=0"])} & {*second.get("seed", [])}):
        words = f"{', '.join(sorted(same))} is among the seeds that are compared in the end"
        raise ConfigError(f"seed: {words}; choose the rates on others")
    combinations = list(product(*values.values()))
    jobs = sweep.do([(*chosen, *arm) for arm in arms or [[]] for chosen in combinations])
    if tune and not any(job.outcome()[0] not in ENDS for job in jobs):
        print(f"\neach at its own best {tune}, on seeds of their own:")
        jobs += sweep.do(tuned(jobs, tune, second))
    elif tune:
        print(f"\nnothing is chosen while runs of {tune} are missing; the same command goes on")
    if summary(jobs):
        raise SystemExit(1)


def tuned(jobs: list[Job], tune: str, final: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """The second sweep's overrides. A combination that never finished has none."""
    losses: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for job in jobs:
        others = tuple(o for o in job.overrides if app.key_of(o) not in (tune, *final))
        value = next(o for o in job.overrides if app.key_of(o) == tune)
        losses.setdefault(others, {}).setdefault(value, []).append(job.outcome()[1])
    chosen = []
    for others, by_value in losses.items():
        means = {value: statistics.fmean(found) for value, found in by_value.items()}
        best = min(means, key=lambda value: means[value])
        name = " ".join(o for o in others if app.key_of(o) in ("norm", "placement")) or " ".join(others)
        if math.isinf(means[best]):
            print(f"  {name}: did not finish at any; left out")
            continue
        tried = sorted(by_value, key=lambda override: number(override.partition("=")[2]))
        edge = len(tried) > 1 and best in (tried[0], tried[-1])
        print(f"  {name}: {best}" + ", an edge of what was tried: the best may lie beyond" * edge)
        chosen += [(*others, best, *more, f"tuned=[{tune}]") for more in product(*final.values())]
    return chosen


def number(text: str) -> float:
    """Sorts values; what is none keeps its place."""
    try:
        return float(text)
    except ValueError:
        return 0.0
