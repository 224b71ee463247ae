"""Plan, launch and watch the runs of a sweep.

    python train.py -m norm=layernorm,batchnorm seed=0,1,2
    python train.py experiment=norm_ablation

Hydra composes the jobs and launches them, in this process or in several; this process plans, watches and
summarises the jobs in the same way for every launcher. Finished runs are skipped; unfinished runs resume. A
job with invalid settings, damaged data or a killed process does not stop the others."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.progress import track

from cli import compose as app
from cli.compose import without_hydras_part as composed_job
from cli.errors import CONF, checked, error_line
from cli.schema import RunConfig
from data.errors import ConfigError, UserError, described
from data.files import digest
from data.prepared import Prepared
from sweep import job_record, plan, signals
from sweep.job import Job, check_for_cluster, keep_errors
from sweep.launch import cores
from sweep.part import Part
from sweep.progress import RESULTS, ProgressWatcher
from training.open_run import tokens_of
from training.run_folder import has_ended
from training.signals import Interrupted

JOBS_A_CORE = 8  # more processes would wait for each other and fill the memory
PATIENCE = 60  # seconds that runs may take to save after a signal to the sweep


class Sweep:
    """Runs the jobs of a sweep.

    Args:
        compose: composes a config, including Hydra's part, from overrides.
        launch: Hydra's launcher; takes the overrides of each job and the number of the first job.
        hydra: Hydra's settings.
        dry_run: only print what would run.
    """

    def __init__(
        self,
        compose: Callable[[list[str]], DictConfig],
        launch: Callable[..., Sequence[Any]],
        hydra: DictConfig,
        dry_run: bool,
    ) -> None:
        self.compose, self.launch, self.dry_run = compose, launch, dry_run
        self.folder = Path(hydra.sweep.dir).resolve()
        runs_dir = str(hydra.sweep.dir).removesuffix(".sweep")
        if runs_dir == "/" or "${" in runs_dir:  # the jobs' Hydra would take ${ for an interpolation
            raise ConfigError("runs_dir: it is empty or has ${ in it; choose another folder for a sweep")
        count = int(hydra.launcher.get("n_jobs") or hydra.launcher.get("array_parallelism") or 1)
        if "n_jobs" in hydra.launcher and count > (most := JOBS_A_CORE * cores()):
            raise ConfigError(f"hydra.launcher.n_jobs: {count} are too many here; give at most {most}")
        # n_jobs=-1: as many as cores, if there are no GPUs: hydra_plugins/normgpt.py
        self.at_once = max(1, count if count > 0 else cores() + 1 + count)
        paths = [str(CONF.parent), os.environ.get("PYTHONPATH")]  # for processes on other machines
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.trained: set[Path] = set()  # the runs that this sweep has trained
        self.on_cluster = "array_parallelism" in hydra.launcher
        self.is_serial = not self.on_cluster and "n_jobs" not in hydra.launcher
        self.has_typed_arms = "hydra.sweeper.arms" in map(app.key_of, hydra.overrides.hydra)
        self.prepared: dict[Any, Prepared] = {}  # by the settings that determine the tokens

    def run(self, all_overrides: Sequence[tuple[str, ...]], part: Part | None = None) -> list[Job]:
        """Run the jobs whose runs have not ended yet; in a dry run, only print them. Return all jobs.
        ``part``: what the runs are for in a fair comparison."""
        jobs = self.jobs_of(all_overrides, part.ignored if part else ())
        todo = [job for job in jobs if not job.done and not job.error]
        self.announce(jobs, todo)
        if self.dry_run:
            for job in jobs:
                if not job.done:
                    print(f"  {job.name}  {f'cannot run: {job.error}' if job.error else job.label}")
            return jobs
        if part and (invalid := [job for job in jobs if job.error]):  # without them it would not be fair
            others = f" (and {len(invalid) - 1} more runs cannot run)" if len(invalid) > 1 else ""
            raise ConfigError(f"{invalid[0].label}: {invalid[0].error}{others}")
        plans = plan.plans(jobs) if part is None or part.role == "compared" else {}
        for job in todo:
            job.wait_for_leftover(PATIENCE)
            record = {"launcher": job_record.this_process(), "state": "waiting"}
            role = part.role_of(job.arm) if part else None
            job_record.write(job.folder, record | {"plan": plans.get(job.arm), "role": role})
        if part:
            part.record([job for job in jobs if job.done])
        with ProgressWatcher(jobs, todo), self.signals_forwarded(todo):
            self.launch_all(todo)
        # also in runs that another program trained meanwhile, which did not know the role
        trained = [job for job in todo if job.outcome()[0] in RESULTS]
        if part:
            part.record(trained)
        self.trained |= {job.run for job in trained if job.run}
        return jobs

    def announce(self, jobs: Sequence[Job], todo: list[Job]) -> None:
        """Print how many runs there are and how many are to do."""
        done, invalid = sum(job.done for job in jobs), sum(job.error is not None for job in jobs)
        counts = f"{done} done before, " if done else ""
        counts += f"{invalid} cannot run, " if invalid else ""
        runs = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
        print(f"{runs}: {counts}{len(todo)} to do, {self.at_once} at once", flush=True)
        if self.is_serial and min(len(todo), cores()) > 1:
            print("several small runs at once take less time: hydra/launcher=joblib train.threads=1")

    def jobs_of(self, all_overrides: Sequence[tuple[str, ...]], ignored: Sequence[str] = ()) -> list[Job]:
        """Return one job for each different run; several tuples of overrides may describe the same run.
        ``ignored``: keys in which the runs of an arm may differ.

        Raises:
            ConfigError: ``experiment`` is swept over, and one of its presets is a sweep itself.
            hydra.errors.HydraException: a job cannot be composed, for example as a choice does not exist.
        """
        if not all_overrides:
            return []
        sweep_hash = digest({"jobs": [list(overrides) for overrides in all_overrides]})[:8]
        shared = set(all_overrides[0]).intersection(*all_overrides)
        jobs: dict[Any, Job] = {}
        varied = {override for overrides in all_overrides for override in overrides} - shared
        sweeps_presets = "experiment" in map(app.key_of, varied)
        on_terminal = sys.stdout.isatty()
        if not on_terminal and len(all_overrides) > 1:  # Hydra takes a quarter of a second for each
            print(f"checking {len(all_overrides)} jobs", flush=True)
        jobs_shown = track(all_overrides, "checking the jobs", disable=not on_terminal, transient=True)
        with nullcontext():
            for number, overrides in enumerate(jobs_shown):
                composed = self.compose(list(overrides))
                if sweeps_presets and composed.hydra.sweeper.params:
                    raise ConfigError("experiment: a preset that sweeps cannot be swept over; start it alone")
                label = " ".join(override for override in overrides if override not in shared)
                job = Job(overrides, label or "the job", self.folder / sweep_hash / f"{number:03}")
                self.check(job, composed, ignored)
                if self.on_cluster and job.config:
                    check_for_cluster(job.config)
                jobs.setdefault(job.run or overrides, job)
        if len(jobs) < len(all_overrides):
            print(f"{len(all_overrides)} jobs describe {len(jobs)} different runs")
        return list(jobs.values())

    def check(self, job: Job, composed: DictConfig, ignored: Sequence[str]) -> None:
        """Validate a job and set its run, or store the error in ``job.error``."""
        try:
            job.config = checked(RunConfig, composed_job(composed))
            data = self.data(job.config)
            data.check_length(job.config.model.block_size)
            job.identify(job.config, data.fingerprint, ignored)
            if job.run and (not job.config.fresh or job.run in self.trained):
                job.done = has_ended(job.run)
            job.work = float(job.config.train.steps * job.config.train.batch_size)
        except (UserError, OmegaConfBaseException, OSError) as error:
            job.error = error_line(error) or described(error)

    def data(self, config: RunConfig) -> Prepared:
        key = config.init_from, config.data
        if key not in self.prepared:
            self.prepared[key] = tokens_of(config)
        return self.prepared[key]

    def launch_all(self, todo: list[Job]) -> None:
        """Launch the jobs, and relaunch them if the launcher breaks, until each has ended."""
        while todo:
            try:
                keep_errors(todo, self.launch([self.arguments(job) for job in todo], initial_job_idx=0))
                return
            except (BrokenExecutor, Interrupted):  # of a process; the launcher ended the others, too
                if signals.received:  # by this process, which is to end
                    raise
                suspects = [job for job in todo if job_record.read(job.folder)["state"] == "running"]
                todo = [job for job in todo if job_record.read(job.folder)["state"] == "waiting"]
                if not suspects and todo:
                    problem = "a process was killed before its job began, perhaps for lack of memory"
                    raise ConfigError(f"hydra.launcher: {problem}; the same command continues") from None
            for job in suspects:  # one at a time, to find the job whose process is killed
                try:
                    keep_errors([job], self.launch([self.arguments(job)], initial_job_idx=0))
                except BrokenExecutor:
                    job.end("its process was killed, perhaps for lack of memory; make the run smaller")
                except Interrupted:  # of that process, which has recorded its end
                    if signals.received:
                        raise

    def arguments(self, job: Job) -> list[str]:
        folder = app.quoted("hydra.sweep.dir", str(job.folder.parent))
        return [*job.overrides, folder, f"hydra.sweep.subdir={job.folder.name}"]

    @contextmanager
    def signals_forwarded(self, todo: list[Job]) -> Iterator[None]:
        """Context manager: forward a signal to the jobs' processes; end this one when they have saved."""

        def end(number: int, frame: Any) -> None:
            deadline = time.monotonic() + PATIENCE
            signalled: set[Path] = set()
            while running := {
                job.folder: record["process"][0]
                for job in todo
                if job_record.is_running(record := job_record.read(job.folder))
            }:
                for folder in running.keys() - signalled:  # a worker may have taken another job meanwhile
                    with suppress(ProcessLookupError):
                        os.kill(running[folder], signal.SIGTERM)
                    signalled.add(folder)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            signals.end(number)

        with signals.handled(end):
            yield
