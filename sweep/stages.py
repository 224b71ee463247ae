"""Run all runs of a sweep in one stage or, for a fair comparison, in several: tune each arm with the same
trial settings, then train it on other seeds at the best of them and at the baseline's best.

An arm is what is compared, such as a norm at a placement. The settings are chosen by val/select_loss, the
loss on the first half of the validation split; runs are compared by val/report_loss, that on the second half.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

from hydra.core.override_parser.types import Override

from cli import compose as app
from cli.errors import invalid_value
from comparison.plans import STARTS, USUAL
from data.errors import ConfigError
from sweep import plan
from sweep.choose import Arm, choose
from sweep.job import Job
from sweep.part import Part
from sweep.progress import summary
from sweep.runner import Sweep
from sweep.trials import Tuning, space, trial_settings, tuning
from training import ddp as launch


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
    The last stages also take the values of ``final``, except of typed keys; the seeds are always its own.

    Raises:
        ConfigError: the stages cannot be planned, for example because they would share seeds.
        SystemExit: with status 1 if a job failed; all failed jobs have been printed.
    """
    if launch.world_size() > 1:
        raise ConfigError("-m: torchrun is for one run; start a sweep, or --dry-run, without it")
    how = tuning(tune) if tune else None
    keys = space(how.keys, command_line) if how else []
    tuned = [app.key_in(key) for key in keys]
    given, typed = (
        [override for override in overrides if app.key_in(override) not in tuned]
        for overrides in ([*preset, *command_line], command_line)
    )
    values, typed_keys = app.alternatives(given), app.alternatives(typed).keys()
    last = {k: v for k, v in app.alternatives(final).items() if k == "seed" or k not in typed_keys}
    if not sweep.has_typed_arms:
        check_typed(typed_keys, arms)
    if how:
        jobs = run_fairly(sweep, values, arms or [[]], how, keys, last)
    else:
        jobs = sweep.run(combined(arms or [[]], values))
    failed = any(job.error for job in jobs) if sweep.dry_run else summary(jobs) > 0
    if failed:
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
    """Return every combination of the values, with each of ``arms``, whose overrides replace values; each
    once."""
    all_arms = (
        tuple({app.key_of(o): o for o in (*combination, *arm)}.values())
        for arm in arms
        for combination in product(*values.values())
    )
    return [*dict.fromkeys(all_arms)]


def run_fairly(
    sweep: Sweep,
    values: dict[str, list[str]],
    arms: list[list[str]],
    how: Tuning,
    keys: list[Override],
    final: dict[str, list[str]],
) -> list[Job]:
    """Tune and compare the arms: every combination of ``values``, with each of ``arms``. Return all jobs; if
    a trial has failed, nothing is compared."""
    seeds, lengths = [*dict.fromkeys(values.pop("seed", ["seed=0"]))], values.pop("train.steps", [])
    tuned = [app.key_in(key) for key in keys]
    check(arms, how, tuned, seeds, lengths, final)
    all_arms = combined(arms, values)
    jobs = sweep.jobs_of(all_arms)
    if len(jobs) < len(all_arms):
        raise ConfigError("hydra.sweeper: several arms describe the same runs; name each arm once")
    check_halves(sweep, jobs)
    seeds = seeds[: how.rounds[-1].seeds]
    numbers = [number(seed) for seed in seeds]
    settings = trial_settings(how, keys, seed=numbers[0])
    last = [(*lengths, *rest) for rest in product(*final.values())]
    steps = valid_steps(sweep.jobs_of([(*all_arms[0], *settings[0], *each) for each in last]))
    over = f"over {', '.join(tuned)}" if tuned else "(nothing is tuned)"
    print(f"{len(all_arms)} arms, {len(settings)} trials of each {over}")
    runs, _ = total_runs(len(all_arms), len(settings), how, len(last))
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
            done = {job.name for job in jobs if job.done}
            print(f"\nstill to train, in all stages: at most {runs - len(done):,} runs", flush=True)
        else:
            command = f"the same command{' without fresh=true' if jobs[0].is_fresh else ''}"
            print(f"\nsettings are chosen once all trials have finished; {command} resumes")
        return jobs
    print("\neach arm at its own settings, on other seeds:")
    at_own_settings = [(*arm, *best, *each) for arm, best in chosen.items() for each in last]
    compared = sweep.run(at_own_settings, part.as_role("compared"))
    baselines = owners(all_arms, plan.usual_values(compared)) if how.borrow else {}
    borrowed = [(*arm, *chosen[owner], *each) for arm, owner in baselines.items() for each in last]
    if not borrowed:
        return [*jobs, *compared]
    print("\neach arm at the baseline's settings, on the same seeds:")
    return [*jobs, *compared, *sweep.run(borrowed, part.as_role("borrowed"))]


def check_halves(sweep: Sweep, jobs: Iterable[Job]) -> None:
    """Raise ConfigError if a validation split has no halves, by which to choose settings and to compare."""
    for config in (job.config for job in jobs if job.config and not job.error):
        size, targets = config.model.block_size, len(sweep.data(config).val) - 1
        if targets <= size:
            problem = f"its validation split has {targets:,} targets, one window of model.block_size={size}"
            raise ConfigError(f"data: {problem}; a fair comparison needs two: give a longer text")


def valid_steps(jobs: Sequence[Job]) -> int:
    """Return ``train.steps`` of these jobs of a last stage. Raises ConfigError if one cannot run: better
    before the trials than after them."""
    if errors := [job.error for job in jobs if job.error]:
        raise ConfigError(errors[0])
    lengths = {job.config.train.steps for job in jobs if job.config}
    if len(lengths) > 1:
        raise ConfigError("hydra.sweeper.final.train.steps: a fair comparison has one length; give one value")
    return lengths.pop()


def total_runs(arms: int, settings: int, how: Tuning, last: int) -> tuple[int, float]:
    """Return how many runs all stages have, at most (an arm may have chosen the baseline's settings), and how
    many runs of ``train.steps`` would take as long. ``last``: the runs of an arm in a last stage."""
    per_arm = [(last * (1 + how.borrow), 1.0), (settings * how.rounds[0].seeds, how.rounds[0].steps)]
    for earlier, later in pairwise(how.rounds):
        new_seeds = later.seeds - (earlier.seeds if earlier.steps == later.steps else 0)
        per_arm.append((later.settings_left(settings) * new_seeds, later.steps))
    return arms * sum(runs for runs, _ in per_arm), arms * sum(runs * length for runs, length in per_arm)


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


def owners(arms: Sequence[Arm], usual: Mapping[str, str]) -> dict[Arm, Arm]:
    """Return the baseline of each arm that has one, as compare.py does: the arm with the usual norms and
    placement and the other overrides of this arm, if there is one, also with its start (STARTS)."""
    options = {key: value for key, value in USUAL.items() if key not in ("norm", "placement")}
    words = options | dict(usual)

    def baseline(arm: Arm) -> Arm:
        normed = tuple(f"{key}={words[key]}" if (key := app.key_of(o)) in words else o for o in arm)
        plain = tuple(o for o in normed if app.key_of(o) not in options)  # the baseline may leave them out
        started_as_usual = tuple(o for o in plain if app.key_of(o) not in STARTS)
        return next((each for each in (normed, plain, started_as_usual) if each in arms), arm)

    baselines = {arm: baseline(arm) for arm in arms}
    return {arm: owner for arm, owner in baselines.items() if owner != arm}
