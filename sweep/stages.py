"""Run all runs of a sweep in one stage or, for a fair comparison, in several: tune each arm with the same
trial settings, then train it on other seeds at the best of them and at the baseline's best.

An arm is what is compared, such as a norm at a placement. The settings are chosen by val/select_loss, the
loss on the first half of the validation split; runs are compared by val/report_loss, that on the second half.
"""

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

from hydra.core.override_parser.types import Override

from cli import app
from comparison.score import Score, score
from sweep import plan
from sweep.job import Job
from sweep.part import Part
from sweep.progress import RESULTS, summary
from sweep.runner import Sweep
from sweep.trials import Round, Settings, Tuning, space, trial_settings, tuning
from system import launch
from system.errors import ConfigError
from system.validate import invalid_value

Arm = tuple[str, ...]  # overrides


def run_stages(
    sweep: Sweep,
    preset: list[Override],
    command_line: list[Override],
    arms: list[list[str]],
    tune: Any,
    final: list[Override],
) -> None:
    """Run every combination of the values of a preset and a command line, for each of ``arms``, each a list
    of overrides that belong together; in stages if ``tune`` says how to choose settings (sweep/trials.py).
    The last stages take the values of ``final``, and other values from the command line.

    Raises:
        ConfigError: the stages cannot be planned, for example because they would share seeds.
        SystemExit: with status 1 if a job failed; all failed jobs have been printed.
    """
    if launch.world_size() > 1:
        raise ConfigError("-m: torchrun is for one run; start a sweep, or --dry-run, without it")
    how = tuning(tune) if tune else None
    keys = space(how.keys, command_line) if how else []
    tuned = [app.key_in(key) for key in keys]
    given = [*preset, *command_line]
    given = [override for override in given if app.key_in(override) not in tuned]
    values = app.alternatives(given)
    typed_keys = app.alternatives([o for o in command_line if o in given]).keys()
    last = {k: v for k, v in app.alternatives(final).items() if k == "seed" or k not in typed_keys}
    if not sweep.has_typed_arms:
        check_typed(typed_keys, arms)
    if how:
        jobs = run_fairly(sweep, values, arms or [[]], how, keys, last)
    else:
        jobs = sweep.run(combined(arms or [[]], values))
    if any(job.error for job in jobs) if sweep.dry_run else summary(jobs):
        raise SystemExit(1)


def check_typed(keys: Iterable[str], arms: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError if every arm of a preset has its own value of a typed key, which would do nothing."""
    for key in keys:
        if arms and all(key in map(app.key_of, arm) for arm in arms):
            raise ConfigError(
                f"{key}: each of the preset's hydra.sweeper.arms has its own; add hydra.sweeper.arms=[] to "
                "leave them out"
            )


def combined(arms: Iterable[Sequence[str]], values: Mapping[str, list[str]]) -> list[Arm]:
    """Return every combination of the values, with each of ``arms``, whose overrides replace values."""
    return [
        tuple({app.key_of(o): o for o in (*combination, *arm)}.values())
        for arm in arms
        for combination in product(*values.values())
    ]


def run_fairly(
    sweep: Sweep,
    values: dict[str, list[str]],
    arms: list[list[str]],
    how: Tuning,
    keys: list[Override],
    final: dict[str, list[str]],
) -> list[Job]:
    """Tune and compare the arms: every combination of ``values``, with each of ``arms``. Return all jobs; if
    one has failed, the stages after it are missing."""
    seeds, lengths = values.pop("seed", ["seed=0"]), values.pop("train.steps", [])
    tuned = [app.key_in(key) for key in keys]
    check(arms, how, tuned, seeds, lengths, final)
    all_arms = combined(arms, values)
    if len(sweep.jobs_of(all_arms)) < len(all_arms):
        raise ConfigError("hydra.sweeper: several arms describe the same runs; name each arm once")
    steps = sweep.compose([*all_arms[0], *lengths]).train.steps
    numbers = [number(seed) for seed in seeds]
    settings = trial_settings(how, keys, seed=numbers[0])
    over = f"over {', '.join(tuned)}" if tuned else "(nothing is tuned)"
    print(f"{len(all_arms)} arms, {len(settings)} trials of each {over}")
    runs = total_runs(len(all_arms), len(settings), how, math.prod(map(len, final.values())))
    print(f"at most {runs:,} runs in all stages", flush=True)
    trials = {
        "settings": settings,
        "rounds": [round_.model_dump() for round_ in how.rounds],
        "seeds": numbers,
        "steps": steps,
    }
    written = datetime.datetime.now(datetime.UTC).isoformat()
    part = Part("trial", trials, tuned, numbers, written)
    jobs, chosen = choose(partial(sweep.run, part=part), all_arms, settings, how.rounds, seeds, steps)
    if not chosen:
        if sweep.dry_run:
            new = runs - len({job.name for job in jobs if job.done})
            print(f"\nall stages: at most {new:,} runs", flush=True)
            sweep.print_estimate([job for job in jobs if not job.done], new)
        else:
            print("\nsettings are chosen once all trials have finished; the same command resumes")
        return jobs
    last = [(*lengths, *rest) for rest in product(*final.values())]
    print("\neach arm at its own settings, on other seeds:")
    own = [(*arm, *best, *each) for arm, best in chosen.items() for each in last]
    compared = sweep.run(own, part.as_role("compared"))
    baselines = owners(all_arms, plan.usual_values(compared)) if how.borrow else {}
    borrowed = [(*arm, *chosen[owner], *each) for arm, owner in baselines.items() for each in last]
    if borrowed:
        print("\neach arm at the baseline's settings, on the same seeds:")
    return [*jobs, *compared, *sweep.run(borrowed, part.as_role("borrowed"))]


def total_runs(arms: int, settings: int, how: Tuning, last: int) -> int:
    """Return how many runs all stages have, at most: an arm may have chosen the baseline's settings.
    ``last``: the runs of an arm in a last stage."""
    per_arm = settings * how.rounds[0].seeds + last * (1 + how.borrow)
    for earlier, later in pairwise(how.rounds):
        new_seeds = later.seeds - (earlier.seeds if earlier.steps == later.steps else 0)
        per_arm += math.ceil(later.trials * settings) * new_seeds
    return arms * per_arm


def check(
    arms: Sequence[Sequence[str]],
    how: Tuning,
    tuned: Sequence[str],
    seeds: Sequence[str],
    lengths: Sequence[str],
    final: Mapping[str, Sequence[str]],
) -> None:
    """Raise ConfigError if the comparison would not be fair."""
    if not final.get("seed"):
        raise ConfigError("hydra.sweeper.final.seed: no value; give the seeds of the compared runs")
    if shared := {*map(number, seeds)} & {*map(number, final["seed"])}:
        why = f"the last stage, whose runs are compared, has {', '.join(map(str, sorted(shared)))}, too"
        raise ConfigError(f"seed: {why}; tune on other seeds")
    if len({*map(number, seeds)}) < (needed := how.rounds[-1].seeds):
        raise ConfigError(f"seed: tuning needs {needed} seeds; give seed=0,1,…")
    if len(lengths) > 1:
        raise ConfigError("train.steps: a fair comparison has one length; give one value")
    for key in tuned:
        if key.count(".") != 1 or not key[0].isalpha():
            raise ConfigError(
                f"hydra.sweeper.tune.keys: {key} cannot be tuned; name a key such as model.init"
            )
    for key in (app.key_of(override) for arm in arms for override in arm):
        if key in tuned:
            raise ConfigError(f"hydra.sweeper.arms: {key} is tuned; remove it from the arm or from tune.keys")
        if key in ("seed", "train.steps"):
            raise ConfigError(f"hydra.sweeper.arms: all arms have the same {key}; remove it from the arm")


def number(seed: str) -> int:
    """Return the number of the override ``seed=…``. Raises ConfigError if it is not a seed."""
    text = seed.partition("=")[2]
    if not text.isdecimal():
        raise ConfigError(invalid_value("seed", text, "it should be an integer of at least 0"))
    return int(text)


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
    for number, round_ in enumerate(rounds, 1):
        length, used = max(1, round(round_.steps * steps)), seeds[: round_.seeds]
        left = {arm: best[: math.ceil(round_.trials * len(settings))] for arm, best in left.items()}
        print(f"\ntuning, round {number} of {len(rounds)}: {length:,} steps, {' '.join(used)}")
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


def owners(arms: Sequence[Arm], usual: Mapping[str, str]) -> dict[Arm, Arm]:
    """Return the baseline of each arm that has one: the arm with the usual norm and placement."""

    def baseline(arm: Arm) -> Arm:
        return tuple(f"{key}={usual[key]}" if (key := app.key_of(o)) in usual else o for o in arm)

    baselines = {arm: baseline(arm) for arm in arms}
    return {arm: owner for arm, owner in baselines.items() if owner in arms and owner != arm}


def titles(arms: Sequence[Arm]) -> dict[Arm, str]:
    """Return a title of each arm, such as ``layernorm pre``, without the overrides that all arms share."""
    shared = {o for o in set.intersection(*map(set, arms)) if app.key_of(o) not in ("norm", "placement")}
    return {arm: " ".join(o.partition("=")[2] for o in arm if o not in shared) for arm in arms}
