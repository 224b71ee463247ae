"""Compare norms and placements in a study: declare it, train its runs, print the verdicts.

    python ablate.py study=norms                              the arms of conf/study/norms.yaml
    python ablate.py study=norms norm=layernorm,l1 placement=pre seeds=10 --config-dir mine
    python ablate.py study=fair trials=32 train.steps=600     each arm at the best of 32 settings; longer runs
    python ablate.py study=fair name=fair_text data=text data.path=FILE
    python ablate.py study=norms --dry-run                    only print the next commands
    python ablate.py study=norms extend=true                  double the seeds, once
    python ablate.py study=norms launcher=slurm slurm='{partition: gpu}' precision=bf16

Keys of a study
    study=                   its file in conf/study
    name= studies_dir=       its folder: studies_dir/name, by default studies/ and the name of the file
    seeds=5                  number of seeds for each arm; the study draws the seeds itself
    tune=                    keys to tune, with their ranges: tune='{optim.learning_rate: log 1e-4 1e-2}'
    trials=16 trial_seeds=2  settings that each arm tries; seeds on which it tries the best of them
    baseline=                overrides of the arm that the others are compared with
    by=KEY                   each value of KEY has its own baseline
    metric=                  val/full_loss or val/report_loss
    matters=0.01             smaller differences, in nats, do not matter
    verdicts=false           give no verdicts: for a map or a curve
    n_jobs=                  how many runs to train at once
    launcher=slurm slurm=    train on a Slurm cluster; options for Slurm
Every other word is an override of train.py for all runs. If it has several values, such as norm=a,b, each
value makes an arm. A file may also list arms one by one: docs/ablations.md, "A study of your own".

studies/NAME/study.json      all arms, trials and seeds: written before the first run, never changed
studies/NAME/chosen.json     each arm's settings, written before the first compared run
studies/NAME/extended.json   the further seeds of extend=true
studies/NAME/index.html      the page: intervals, curves, blocks, tuning; table.md has the table alone
studies/NAME/runs.csv        a line for each run; curves.csv has losses by step
studies/NAME/logs/           what each run printed

After an interruption, the same command resumes. A study never changes: give a changed one a new name.
docs/ablations.md explains all this.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cli.errors import one_line_errors
from data.errors import ConfigError
from study import files, launch, plan, publish, report, table
from study.files import Study
from study.launch import Job
from study.plan import Declared, Words
from study.trials import AS_GIVEN, best_quarter, choice, select_loss

# Read this file from the bottom.

Train = Callable[[Sequence[Job]], dict[str, int]]  # trains the unfinished runs; returns exit statuses by name


def announce(study: Study, n_jobs: int) -> None:
    """Print what the study will do, before its first run."""
    arms, trials, seeds = len(study.arms), len(study.trials), len(study.seeds)
    for arm in study.arms:
        for title in arm.same_as:
            print(f"{title} is the same model as {arm.title}: one arm")
    further = len(best_quarter([None] * trials)) * (len(study.trial_seeds) - 1)
    tuning = f"{arms * trials} trials, and {arms * further} of the best on other seeds; " if trials else ""
    by = f", for each value of {', '.join(study.by)}" if study.by else ""
    print(f"{arms} arms, {study.precision or 'each with its own precision'}; baseline: {study.baseline}{by}")
    print(f"{tuning}{arms * seeds} compared runs, on {seeds} seeds")
    print(f"{n_jobs} runs at once", flush=True)


def trainer(declared: Declared, n_jobs: int) -> Train:
    """Return the function that trains runs, on this machine or on a cluster."""
    study, asked = declared.study, declared.asked
    folders = Path(study.runs_dir), declared.folder / "logs"
    if asked.launcher == "slurm":
        from study import slurm  # needs requirements-slurm.txt

        return lambda jobs: slurm.run_all(jobs, *folders, study.config_dir, asked.slurm)
    return lambda jobs: launch.run_all(jobs, *folders, n_jobs, study.config_dir)


def printer(declared: Declared, n_jobs: int) -> Train:
    """Return a function that trains nothing: it prints the commands of the unfinished runs, then exits,
    because later runs depend on their results."""
    study, threads = declared.study, max(1, launch.cores() // n_jobs)

    def train(jobs: Sequence[Job]) -> dict[str, int]:
        todo = launch.pending(jobs, Path(study.runs_dir))
        for job in todo:
            print(shlex.join(launch.command(job, threads, study.config_dir)))
        if todo:
            raise SystemExit
        return {job.name: 0 for job in jobs}

    return train


def choose(study: Study, train: Train, logs: Path) -> dict[str, Any]:
    """Train the trials. Return each arm's choice by title. Raises ConfigError if a run failed."""
    if not study.trials:
        return {arm.title: AS_GIVEN for arm in study.arms}

    def losses(names: Words) -> list[float | None]:
        return [select_loss(Path(study.runs_dir, name)) for name in names]

    launch.check(train(plan.trial_jobs(study)), logs)
    first = {arm.title: losses([names[0] for names in arm.trials]) for arm in study.arms}
    best = {title: best_quarter(each) for title, each in first.items()}
    launch.check(train(plan.trial_jobs(study, best)), logs)
    return {
        arm.title: choice(study.trials, first[arm.title], {n: losses(arm.trials[n]) for n in best[arm.title]})
        for arm in study.arms
    }


def undecided(folder: Path) -> bool:
    """Return whether some arm of a study is open or has no verdict."""
    return any(row.baseline and row.outcome in (None, "open") for row in report.load(folder).rows)


def train_all(declared: Declared, train: Train, write: bool) -> dict[str, int]:
    """Train what is missing: trials, compared runs, and further seeds if requested. Return the exit statuses
    of the compared runs by name. Write chosen.json and extended.json only if ``write``. Raises ConfigError if
    a trial failed, or if further seeds are requested although every arm has its verdict."""
    study, folder = declared.study, declared.folder
    file = folder / "chosen.json"
    if (chosen := files.read_part(file)) is None:
        choices = choose(study, train, folder / "logs")
        names = declared.compared_names(choices, study.seeds)
        arms = {title: choice | {"runs": names[title]} for title, choice in choices.items()}
        chosen = {"written": plan.now(), "arms": arms}
        if write:
            files.write_once(file, chosen)
    if any(arm["settings"] not in [{}, *study.trials] for arm in chosen["arms"].values()):
        raise ConfigError(f"{file}: has settings that were not tried; restore the file")
    names = {title: arm["runs"] for title, arm in chosen["arms"].items()}
    statuses = train(plan.compared_jobs(study, chosen, names, study.seeds))
    if any(statuses.values()):
        return statuses
    file = folder / "extended.json"
    if (extended := files.read_part(file)) is None and declared.asked.extend:
        if not undecided(folder):
            raise ConfigError("extend: every arm has its verdict, so nothing is trained; leave extend= out")
        names = declared.compared_names(chosen["arms"], study.further_seeds)
        extended = {"written": plan.now(), "seeds": study.further_seeds, "runs": names}
        if write:
            files.write_once(file, extended)
    if extended:
        statuses |= train(plan.compared_jobs(study, chosen, extended["runs"], extended["seeds"]))
    return statuses


def show(folder: Path) -> None:
    """Print the table of a study; write the table, the page, and the tables of its runs."""
    content = report.read(folder)
    judged = report.judged(content)
    table.print_rows(judged, table.terminal())
    from study import page  # slow to import, so after the table is printed

    publish.write_runs(folder, *content[:4])
    print(f"page: {page.write(judged, folder)}")


def ablate(words: Words) -> None:
    """Declare the study of a command line; train what is missing; print the table. Raises UserError."""
    is_dry, words = "--dry-run" in words, [word for word in words if word != "--dry-run"]
    declared = plan.declare(words, write=not is_dry)
    study, folder = declared.study, declared.folder
    device = next((word[7:] for word in reversed(study.words) if word.startswith("device=")), "auto")
    n_jobs = declared.asked.n_jobs or launch.default_n_jobs(device)
    announce(study, n_jobs)
    if is_dry:
        train_all(declared, printer(declared, n_jobs), write=False)
        print("all runs have ended")
        return
    try:
        with FileLock(folder / ".lock", timeout=0):
            statuses = train_all(declared, trainer(declared, n_jobs), write=True)
    except Timeout:
        raise ConfigError(f"{folder}: another process runs this study; wait for it or end it") from None
    show(folder)
    launch.check(statuses, folder / "logs")


if __name__ == "__main__":
    with one_line_errors():
        if {"--help", "-h"} & {*sys.argv[1:]}:
            print(__doc__)
        else:
            ablate(sys.argv[1:])
