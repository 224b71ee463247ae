"""Run a sweep at once or, for a fair comparison, in stages: tune each arm by equal trials; then train each
arm at its own settings, and at those of the baseline, on other seeds.

An arm is what is compared, such as a norm at a placement. The settings are chosen by val/select_loss, the
loss on the first half of the validation split; runs are compared by val/report_loss, that on the second half.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.types import Override

from cli import app
from sweep import plan
from sweep.job import Job
from sweep.progress import RESULTS, summary
from sweep.runner import Sweep
from sweep.trials import Round, Settings, Tuning, draw, space, tuning
from system import launch
from system.errors import ConfigError

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
        raise ConfigError("-m: torchrun is for one run; start a sweep without it, or name one run")
    how = tuning(tune) if tune else None
    keys = space(how.keys, command_line) if how else []
    tuned = [key.get_key_element() for key in keys]
    given = [override for override in [*preset, *command_line] if override.get_key_element() not in tuned]
    values = app.alternatives(given)
    typed_keys = app.alternatives([o for o in command_line if o in given]).keys()
    last = {k: v for k, v in app.alternatives(final).items() if k == "seed" or k not in typed_keys}
    if how:
        jobs = run_fairly(sweep, values, arms or [[]], how, keys, last)
    else:
        jobs = sweep.run([(*c, *arm) for arm in arms or [[]] for c in product(*values.values())])
    if summary(jobs):
        raise SystemExit(1)


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
    if shared := {*seeds} & {*final.get("seed", [])}:
        why = f"{', '.join(sorted(shared))} is also a seed of the last stage, whose runs are compared"
        raise ConfigError(f"seed: {why}; tune on other seeds")
    if len(seeds) < (needed := max(round_.seeds for round_ in how.rounds)):
        raise ConfigError(f"seed: tuning needs {needed} seeds; give seed=0,1,…")
    if len(lengths) > 1:
        raise ConfigError("train.steps: a fair comparison has one length; give one value")
    all_arms: list[Arm] = [(*c, *arm) for arm in arms for c in product(*values.values())]
    steps = sweep.compose([*all_arms[0], *lengths]).train.steps
    names = ", ".join(tuned_keys(keys))
    print(f"{len(all_arms)} arms, {how.trials} trials of each over {names}", flush=True)
    settings = draw(keys, how.trials, seed=int(seeds[0].partition("=")[2]))
    jobs, chosen = choose(sweep, dict.fromkeys(all_arms, settings), how.rounds, seeds, steps)
    if any(job.outcome()[0] not in RESULTS for job in jobs):
        print("\nsettings are chosen once all trials have finished; rerun the same command to resume")
        return jobs
    tuned = f"tuned=[{','.join(tuned_keys(keys))}]"
    more = [(*lengths, *rest, tuned) for rest in product(*final.values())]
    print("\neach arm at its own settings, on other seeds:")
    compared = sweep.run([(*arm, *own, *each) for arm, own in chosen.items() for each in more])
    borrowed = [
        (*arm, *chosen[owner], *each, app.text_override("settings_of", titles(all_arms)[owner]))
        for arm, owner in owners(chosen, plan.usual_values(compared)).items()
        for each in more
    ]
    if borrowed:
        print("\neach arm at the baseline's settings, on the same seeds:")
    return [*jobs, *compared, *sweep.run(borrowed, is_compared=False)]


def tuned_keys(keys: Sequence[Override]) -> list[str]:
    return [key.get_key_element() for key in keys]


def choose(
    sweep: Sweep, left: dict[Arm, list[Settings]], rounds: Sequence[Round], seeds: list[str], steps: int
) -> tuple[list[Job], dict[Arm, Settings]]:
    """Return the jobs of all rounds, and the best settings of each arm that has some at which no run
    diverged. If a job fails, its round is the last, and the settings are void."""
    all_jobs: list[Job] = []
    count = max(map(len, left.values()))
    for number, round_ in enumerate(rounds, 1):
        length, used = max(1, round(round_.steps * steps)), seeds[: round_.seeds]
        left = {arm: tried[: math.ceil(round_.trials * count)] for arm, tried in left.items()}
        print(f"\ntuning, round {number} of {len(rounds)}: {length:,} steps, {' '.join(used)}")
        trials = {
            (*arm, *settings, f"train.steps={length}", seed): (arm, settings)
            for arm, tried in left.items()
            for settings in tried
            for seed in used
        }
        jobs = sweep.run([*trials], is_compared=False)
        all_jobs += jobs
        if any(job.outcome()[0] not in RESULTS for job in jobs):
            return all_jobs, {}
        losses: dict[Arm, dict[Settings, list[float]]] = defaultdict(lambda: defaultdict(list))
        for job in jobs:
            arm, settings = trials[job.overrides]
            losses[arm][settings].append(job.select_loss())
        means = {arm: {s: statistics.fmean(values) for s, values in by.items()} for arm, by in losses.items()}
        left = {arm: sorted(by, key=lambda settings: by[settings]) for arm, by in means.items()}
    chosen, names = {}, titles([*left])
    for arm, (best, *_) in left.items():
        if math.isinf(means[arm][best]):
            print(f"  {names[arm]}: at each of its settings a run diverged; left out")
        else:
            print(f"  {names[arm]}: {' '.join(best)} (val/select_loss {means[arm][best]:.4f})")
            chosen[arm] = best
    return all_jobs, chosen


def owners(chosen: Mapping[Arm, Settings], usual: Mapping[str, str]) -> dict[Arm, Arm]:
    """Return the baseline of each arm that has one: the arm with the usual norm and placement."""

    def baseline(arm: Arm) -> Arm:
        return tuple(f"{key}={usual[key]}" if (key := app.key_of(o)) in usual else o for o in arm)

    baselines = {arm: baseline(arm) for arm in chosen}
    return {arm: owner for arm, owner in baselines.items() if owner in chosen and owner != arm}


def titles(arms: Sequence[Arm]) -> dict[Arm, str]:
    """Return a title of each arm, such as ``layernorm pre``, without the overrides that all arms share."""
    shared = {o for o in set.intersection(*map(set, arms)) if app.key_of(o) not in ("norm", "placement")}
    return {arm: " ".join(o.partition("=")[2] for o in arm if o not in shared) for arm in arms}
