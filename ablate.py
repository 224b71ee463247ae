"""Compare norms and placements in a study: declare it, train its runs, print the verdicts.

    python ablate.py study=norms                              the arms of conf/study/norms.yaml
    python ablate.py study=norms norm=layernorm,l1 placement=pre seeds=10 --config-dir mine
    python ablate.py study=fair trials=32 train.steps=600     each arm at the best of 32 settings; longer runs
    python ablate.py study=fair name=fair_text data=text data.path=FILE
    python ablate.py study=norms --dry-run                    only print the commands that come next
    python ablate.py study=norms extend=true                  train as many further seeds, once
    python ablate.py study=norms launcher=slurm slurm='{partition: gpu}'

Keys of a study
    study= name= studies_dir=       its file in conf/study; its folder is studies_dir/name
    seeds=5                         how many each arm is compared on; the study draws its own
    tune= trials=16 trial_seeds=2   ranges, {optim.learning_rate: log 1e-4 1e-2}; settings; tuning seeds
    baseline= by=KEY                words of the arm that others are compared with; one for each value of KEY
    metric= matters=0.01 verdicts=  what is compared; nats that count as none; false: no verdicts
    n_jobs= launcher= slurm=        runs at once; processes, slurm; options of the cluster
Every other word is one of train.py for all runs; with several values, as norm=a,b, it makes arms. A file may
also list arms one by one: docs/ablations.md, "A study of your own".

studies/NAME/study.json      all arms, trials and seeds: written before the first run, never changed
studies/NAME/chosen.json     each arm's settings, written before the first compared run
studies/NAME/extended.json   the further seeds of extend=true
studies/NAME/index.html      the page: intervals, curves, blocks, tuning; table.md has its table
studies/NAME/runs.csv        a line a run, and curves.csv: losses by step
studies/NAME/logs/           what each run printed

The same command again goes on where it was interrupted. Verdicts hold for what was declared: a change needs
a new name. docs/ablations.md explains all this.
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
from study.plan import Asked, Declared, Words
from study.trials import AS_GIVEN, best_quarter, choice, select_loss

Train = Callable[[Sequence[Job]], dict[str, int]]  # trains what has not ended; returns statuses by name


def announce(study: Study, n_jobs: int) -> None:
    """Print what will be done, before the first run."""
    arms, trials, seeds = len(study.arms), len(study.trials), len(study.seeds)
    for arm in study.arms:
        for title in arm.same_as:
            print(f"{title} is the same model as {arm.title}: one arm")
    further = len(best_quarter([None] * trials)) * (len(study.trial_seeds) - 1)
    tuning = f"{arms * trials} trials, and {arms * further} of the best on other seeds; " if trials else ""
    by = f", for each value of {', '.join(study.by)}" if study.by else ""
    print(f"{arms} arms, {study.precision or 'each its own precision'}; baseline: {study.baseline}{by}")
    print(f"{tuning}{arms * seeds} compared runs, on {seeds} seeds")
    print(f"{n_jobs} runs at once", flush=True)


def trainer(study: Study, folder: Path, asked: Asked, n_jobs: int) -> Train:
    """Return the function that trains runs, here or on a cluster."""
    runs_dir, logs = Path(study.runs_dir), folder / "logs"

    def train(jobs: Sequence[Job]) -> dict[str, int]:
        if asked.launcher == "slurm":
            from study import slurm  # needs requirements-slurm.txt

            ids = slurm.submit(jobs, runs_dir, logs, study.config_dir, asked.slurm)
            return slurm.wait(ids, runs_dir, logs)
        return launch.run_all(jobs, runs_dir, logs, n_jobs, study.config_dir)

    return train


def choose(study: Study, train: Train, logs: Path) -> dict[str, Any]:
    """Train the trials. Return each arm's part of chosen.json, but for its runs. Raises ConfigError if a run
    failed."""
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


def written_once(file: Path, content: Callable[[], dict[str, Any]], write: bool) -> dict[str, Any]:
    """Return the content of a JSON file, which is made and written if it is not there. Raises ConfigError."""
    if (old := files.read_part(file)) is not None:
        return old
    new = content()
    if write:
        files.write_once(file, new)
    return new


def undecided(folder: Path) -> bool:
    """Return whether an arm of a study has no verdict yet, or an open one."""
    compared = [row for row in report.load(folder).rows if row.baseline]
    return any(row.outcome in (None, "open") for row in compared)


def train_all(declared: Declared, train: Train, extend: bool, write: bool) -> dict[str, int]:
    """Train what is missing: trials, compared runs, and further seeds if they are asked for. Return statuses
    of compared runs by name. Raises ConfigError if a trial failed."""
    study, folder = declared.study, declared.folder

    def chosen_json() -> dict[str, Any]:
        choices = choose(study, train, folder / "logs")
        names = declared.compared_names(choices, study.seeds)
        arms = {title: choice | {"runs": names[title]} for title, choice in choices.items()}
        return {"written": plan.now(), "arms": arms}

    def extended_json() -> dict[str, Any]:
        names = declared.compared_names(chosen["arms"], study.further_seeds)
        return {"written": plan.now(), "seeds": study.further_seeds, "runs": names}

    chosen = written_once(folder / "chosen.json", chosen_json, write)
    names = {title: arm["runs"] for title, arm in chosen["arms"].items()}
    statuses = train(plan.compared_jobs(study, chosen, names, study.seeds))
    file = folder / "extended.json"
    if extend and not file.exists() and not undecided(folder):
        why = "each arm has its verdict; more seeds would only judge it anew, more strictly"
        raise ConfigError(f"extend: {why}")
    if not any(statuses.values()) and (extend or file.exists()):
        extended = written_once(file, extended_json, write)
        statuses |= train(plan.compared_jobs(study, chosen, extended["runs"], extended["seeds"]))
    return statuses


def printer(study: Study, n_jobs: int) -> Train:
    """Return a function that prints the commands of the runs that have not ended, and ends the program: which
    runs come after them depends on their results."""

    def train(jobs: Sequence[Job]) -> dict[str, int]:
        todo = launch.pending(jobs, Path(study.runs_dir))
        for job in todo:
            print(shlex.join(launch.command(job, max(1, launch.cores() // n_jobs), study.config_dir)))
        if todo:
            raise SystemExit
        return {job.name: 0 for job in jobs}

    return train


def show(folder: Path) -> None:
    """Print the table of a study; write it, its page, and its runs as tables."""
    content = report.read(folder)
    judged = report.judged(content)
    table.print_rows(judged, table.terminal())
    from study import page  # slow to import, so after the table is printed

    publish.write_runs(folder, *content[:4])
    print(f"page: {page.write(judged, folder)}")


def ablate(words: Words) -> None:
    """Declare the study of a command line; train what is missing; print the table. Raises UserError."""
    is_dry, words = "--dry-run" in words, [word for word in words if word != "--dry-run"]
    asked, _, _ = plan.read_words(words)
    if asked.launcher == "slurm" and not any(word.startswith("precision=") for word in words):
        why = "auto may mean another one on the machines of the cluster"
        raise ConfigError(f"precision: {why}; give precision=bf16 or precision=fp32")
    declared = plan.declare(words, write=not is_dry)
    study, folder = declared.study, declared.folder
    device = next((word[7:] for word in reversed(study.words) if word.startswith("device=")), "auto")
    n_jobs = asked.n_jobs or launch.default_n_jobs(device)
    announce(study, n_jobs)
    if is_dry:
        train_all(declared, printer(study, n_jobs), asked.extend, write=False)
        print("all runs have ended")
        return
    try:
        with FileLock(folder / ".lock", timeout=0):
            statuses = train_all(declared, trainer(study, folder, asked, n_jobs), asked.extend, write=True)
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
