"""Many runs by one command: what there is to do, how long it takes, how each run ended.

    python train.py -m norm=layernorm,batchnorm seed=0,1,2
    python train.py experiment=norm_ablation

Hydra composes the jobs and launches them, in this process or in several; this process plans, watches and
sums up, the same under every launcher. Runs that have ended are not done again, and others go on. A job whose
settings are refused, whose data are damaged or whose process is killed does not keep the others from their
end.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cli import app, job_record
from cli.compose import composed_job
from cli.schema import RunConfig
from data.token_files import Prepared
from rundir import identity
from rundir.folder import has_ended
from sweep.job import Job, folder_of
from sweep.progress import Watch, duration
from system import os_compat, signals
from system.errors import ConfigError, DataError
from system.validate import checked
from training.cost import seconds_per_operation, work
from training.load_data import tokens_of

PATIENCE = 60  # seconds that runs may take to save when the sweep is asked to end


class Sweep:
    """Does jobs.

    Args:
        compose: overrides -> the composed config, Hydra's part included.
        launch: Hydra's launcher: the overrides of each job, and the number of the first.
        hydra: Hydra's own settings.
    """

    def __init__(
        self,
        compose: Callable[[list[str]], DictConfig],
        launch: Callable[..., Sequence[Any]],
        hydra: DictConfig,
    ) -> None:
        self.compose, self.launch = compose, launch
        self.folder = Path(hydra.sweep.dir).resolve()
        count = hydra.launcher.get("n_jobs") or hydra.launcher.get("array_parallelism") or 1
        self.at_once = int(count) if count > 0 else os_compat.cores() + 1 + int(count)  # -1: as many as cores
        self.prepared: dict[str, Prepared | ConfigError | DataError] = {}

    def do(self, all_overrides: Sequence[tuple[str, ...]]) -> list[Job]:
        """Do the jobs that were not done before. Returns all of them."""
        jobs = self.planned(all_overrides)
        todo = [job for job in jobs if not job.is_over()]
        done, wrong = sum(job.done for job in jobs), sum(job.error is not None for job in jobs)
        counts = f"{done} done before, " * bool(done) + f"{wrong} cannot be done, " * bool(wrong)
        print(f"{len(jobs)} runs: {counts}{len(todo)} to do, {self.at_once} at once{self.estimate(todo)}")
        sys.stdout.flush()
        with Watch(jobs, todo), self.ending_workers(todo):
            self.launched(todo)
        return jobs

    def planned(self, all_overrides: Sequence[tuple[str, ...]]) -> list[Job]:
        """A job for each run; two jobs may be the same run, which is done once.

        Raises:
            hydra.errors.HydraException: a job cannot be composed, as a choice does not exist: nothing is
            done.
        """
        if not all_overrides:
            return []
        sweep = identity.short_hash({"jobs": [list(overrides) for overrides in all_overrides]})
        shared = set(all_overrides[0]).intersection(*all_overrides)
        jobs: dict[Any, Job] = {}
        if sys.stdout.isatty():  # some seconds, of which somebody who waits wants to know
            what = f"{len(all_overrides)} jobs, and measuring how fast they go"
            print(f"composing and checking {what}", flush=True)
        everything = [self.compose(list(overrides)) for overrides in all_overrides]
        if "experiment" in map(app.key_of, set().union(*all_overrides) - shared) and any(
            composed.hydra.sweeper.params for composed in everything
        ):
            raise ConfigError(
                "experiment: a preset that is a sweep is not one of several; start each by itself"
            )
        for number, (overrides, composed) in enumerate(zip(all_overrides, everything, strict=True)):
            label = " ".join(override for override in overrides if override not in shared)
            job = Job(overrides, label or "the job", self.folder / sweep / f"{number:03}")
            try:
                job.config = checked(RunConfig, composed_job(composed))
                data = self.data(job.config)
                data.check_length(job.config.model.block_size)
                job.run = folder_of(job.config, data.fingerprint)
                job.done = has_ended(job.run) and not job.config.fresh
                job.work = work(job.config, data)
            except (ConfigError, DataError) as error:
                job.error = str(error)
            if not job.done and not job.error:
                wait_for_leftover(job)
                job_record.write(job.folder, {"launcher": job_record.this_process(), "state": "waiting"})
            jobs.setdefault(job.run or overrides, job)
        if len(jobs) < len(all_overrides):
            print(f"{len(all_overrides)} jobs are {len(jobs)} different runs")
        return list(jobs.values())

    def data(self, config: RunConfig) -> Prepared:
        key = f"{config.init_from} {config.data.model_dump_json()}"
        if key not in self.prepared:
            try:
                self.prepared[key] = tokens_of(config)
            except (ConfigError, DataError) as error:
                self.prepared[key] = error
        found = self.prepared[key]
        if isinstance(found, Exception):
            raise found
        return found

    def estimate(self, todo: list[Job]) -> str:
        """How long that will take, by the first job's pace."""
        first = next((job for job in todo if job.config), None)
        if not first or not first.config:
            return ""
        try:
            pace = seconds_per_operation(first.config, self.data(first.config))
        except Exception:  # whatever a norm may raise: its job will say so itself
            return ""
        left = sum(job.work * (1 - job.part_done()) for job in todo)
        return f", about {duration(pace * left / min(self.at_once, len(todo)))}"

    def launched(self, todo: list[Job]) -> None:
        """Launch jobs until each has ended."""
        found = os.environ.get("PYTHONPATH")  # by which a process on another machine finds our code
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(app.CONF.parent), found]))
        while todo:
            try:
                self.launch([self.arguments(job) for job in todo], initial_job_idx=0)
                return
            except BrokenExecutor:  # a process was killed, and the launcher ended the others of its pool
                suspects = [job for job in todo if job_record.read(job.folder)["state"] == "running"]
                todo = [job for job in todo if job_record.read(job.folder)["state"] == "waiting"]
                if not suspects:
                    raise
            for job in suspects:  # each by itself, so that it alone can be the reason
                try:
                    self.launch([self.arguments(job)], initial_job_idx=0)
                except BrokenExecutor:
                    error = (
                        "its process was killed, as a system does that runs out of memory; make it smaller"
                    )
                    job_record.write(
                        job.folder, job_record.read(job.folder) | {"state": "ended", "error": error}
                    )

    def arguments(self, job: Job) -> list[str]:
        where = app.quoted(f"hydra.sweep.dir={job.folder.parent}")
        return [*job.overrides, where, f"hydra.sweep.subdir={job.folder.name}"]

    @contextmanager
    def ending_workers(self, todo: list[Job]) -> Iterator[None]:
        """Inside, a signal is passed on to the processes of the jobs, which save, before it ends this one."""

        def end(number: int, frame: Any) -> None:
            deadline = time.monotonic() + PATIENCE
            told: set[Path] = set()
            while alive := {
                job.folder: record["process"][0]
                for job in todo
                if job_record.alive(record := job_record.read(job.folder))
            }:
                for folder in alive.keys() - told:  # a worker may have taken another job meanwhile
                    with suppress(ProcessLookupError):
                        os.kill(alive[folder], signal.SIGTERM)
                    told.add(folder)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            signals.end(number)

        with signals.handled(end):
            yield


def wait_for_leftover(job: Job) -> None:
    """A worker of the same sweep, whose launching process was killed, is about to save.

    Raises:
        ConfigError: the same sweep is being done by another process.
    """
    deadline = time.monotonic() + PATIENCE
    while job_record.is_anothers(record := job_record.read(job.folder)) or job_record.alive(record):
        if job_record.is_anothers(record) or time.monotonic() > deadline:
            who = f"process {record['launcher'][0]} is doing this very sweep"
            raise ConfigError(f"{job.folder.parent}: {who}; wait for it or end it")
        time.sleep(0.1)
