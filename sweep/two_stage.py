"""Run a sweep in one stage or in two: the first tunes the value of one key, and the second runs each
combination of the other values at its best value of that key.

The second stage uses other seeds, so that the runs that are compared had no part in the choice.
"""

import math
import statistics
from itertools import product

from hydra.core.override_parser.types import Override

from cli import app
from sweep.job import Job
from sweep.progress import RESULTS, summary
from sweep.runner import Sweep
from system import launch
from system.errors import ConfigError


def run_stages(
    sweep: Sweep,
    preset: list[Override],
    command_line: list[Override],
    arms: list[list[str]],
    tune: str | None,
    final: list[Override],
) -> None:
    """Run every combination of the values of a preset and a command line, for each of ``arms``, each a list
    of overrides that belong together. If ``tune`` names a key, run a second stage: ``final`` for each
    combination of the other values, at the value of ``tune`` with the lowest mean loss in the first stage.
    The command line overrides the preset and ``final``, but its seeds are for the first stage only.

    Raises:
        ConfigError: the second stage would share seeds with the first.
        SystemExit: with status 1 if a job failed; all failed jobs have been printed.
    """
    if launch.world_size() > 1:
        raise ConfigError("-m: torchrun is for one run; start a sweep without it, or name one run")
    values, typed_keys = app.alternatives([*preset, *command_line]), app.alternatives(command_line).keys()
    second_values = {k: v for k, v in app.alternatives(final).items() if k == "seed" or k not in typed_keys}
    if tune and tune not in values:
        raise ConfigError(f"hydra.sweeper.tune: {tune} has no values to choose from; give {tune}=…,…")
    if tune and (shared := {*values.get("seed", ["seed=0"])} & {*second_values.get("seed", [])}):
        why = f"{', '.join(sorted(shared))} is also a seed of the second stage, whose runs are compared"
        raise ConfigError(f"seed: {why}; tune on other seeds")
    combinations = list(product(*values.values()))
    first = [(*combination, *arm) for arm in arms or [[]] for combination in combinations]
    jobs = sweep.run(first, is_compared=not tune)
    if tune and all(job.outcome()[0] in RESULTS for job in jobs):
        print(f"\neach combination at its own best {tune}, on other seeds:")
        jobs += sweep.run(second_stage_overrides(jobs, tune, second_values))
    elif tune:
        print(f"\n{tune} is chosen once all its runs have finished; rerun the same command to resume")
    if summary(jobs):
        raise SystemExit(1)


def second_stage_overrides(jobs: list[Job], tune: str, final: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Return the overrides of the second stage. A combination is left out if, at every value of ``tune``, a
    seed of it did not finish."""
    losses: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for job in jobs:
        combination = tuple(o for o in job.overrides if app.key_of(o) not in (tune, *final))
        value = next(o for o in job.overrides if app.key_of(o) == tune)
        losses.setdefault(combination, {}).setdefault(value, []).append(job.outcome()[1])
    second_stage = []
    for combination, by_value in losses.items():
        means = {value: statistics.fmean(seed_losses) for value, seed_losses in by_value.items()}
        best = min(means, key=lambda value: means[value])
        norms = [override for override in combination if app.key_of(override) in ("norm", "placement")]
        name = " ".join(norms or combination)
        if math.isinf(means[best]):
            print(f"  {name}: at every value a seed diverged or failed; left out")
            continue
        values = sorted(by_value, key=lambda override: sort_key(override.partition("=")[2]))
        edge = (values[0], values[-1]) if len(values) > 1 else ()
        note = ", at the edge of the values tried: the best may lie beyond" if best in edge else ""
        print(f"  {name}: {best}{note}")
        second_stage += [(*combination, best, *more, f"tuned=[{tune}]") for more in product(*final.values())]
    return second_stage


def sort_key(text: str) -> float:
    """Return ``text`` as a number, or 0 if it is not a number, so that sorting keeps the order of words."""
    try:
        return float(text)
    except ValueError:
        return 0.0
