"""One run of a sweep, as the launching process sees it."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus

from cli.errors import error_line
from cli.schema import RunConfig
from data.errors import ConfigError, described
from data.files import digest
from sweep import job_record
from training import identity
from training.run_folder import SELECT, ended_folder, has_ended, last_row, read_json, read_status


@dataclass
class Job:
    """One run of a sweep."""

    overrides: tuple[str, ...]
    label: str  # the overrides that not all jobs share
    folder: Path  # the job's record: cli/job_record.py
    config: RunConfig | None = None
    run: Path | None = None  # the run's folder
    group: str = ""  # shared by all runs that differ only in their seed
    arm: str = ""  # shared by all runs that differ only in seed, learning rate and the ignored keys
    work: float = 0.0  # estimated number of floating-point operations
    error: str | None = None  # why the job cannot run
    done: bool = False  # the run has ended and is not trained again

    def identify(self, config: RunConfig, fingerprint: str, ignored: Iterable[str]) -> None:
        """Set the run, group and arm of a config. Raises ConfigError."""
        precision = precision_of(config, fingerprint)
        self.run = identity.folder_of(config, precision, fingerprint)
        self.group = identity.group_name(config, precision, fingerprint)
        self.arm = arm_hash(config, precision, fingerprint, ignored)

    @property
    def name(self) -> str:
        return self.run.name if self.run else self.label

    @property
    def is_fresh(self) -> bool:
        return self.config is not None and self.config.fresh

    def end(self, error: str) -> None:
        """Record that the job ended with an error."""
        job_record.write(self.folder, job_record.read(self.folder) | {"state": "ended", "error": error})

    def has_ended(self) -> bool:
        return self.done or self.error is not None or job_record.read(self.folder).get("state") == "ended"

    def fraction_done(self) -> float:
        """Return the fraction of the run that is done, 0 to 1."""
        if self.has_ended():
            return 1.0
        return self.fraction_trained()

    def fraction_trained(self) -> float:
        """Return the fraction of the run that a launch need not train, 0 to 1."""
        if self.done or not self.run or not self.config:
            return float(self.done)
        status = read_status(self.run)
        is_of_old_run = self.is_fresh and status.get("state") != "running" and not self.has_ended()
        if is_of_old_run:  # which is going to be replaced
            return 0.0
        return status.get("step", 0) / max(1, self.config.train.steps)

    def outcome(self) -> tuple[str, float, str]:
        """Return the run's state (or "failed"), its loss (infinite unless finished), and the reason."""
        status = read_status(self.run) if self.run else {}
        # once the run has ended, what kept this job from training it does not matter
        has_result = self.done or (self.run and has_ended(self.run) and not self.is_fresh)
        error = self.error or (None if has_result else job_record.read(self.folder).get("error"))
        if error or not self.run:
            return "failed", math.inf, error or "the job has no run"
        state = status.get("state", "not started")
        loss = float(status.get("final", math.nan)) if state == "finished" else math.inf
        return state, loss, status.get("reason") or ""

    def wait_for_leftover(self, patience: float) -> None:
        """Wait until a worker left over from an earlier, killed launch of this sweep has saved its run.

        Raises:
            ConfigError: another process is running the same sweep, or the worker needs more than ``patience``
                seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            record = job_record.read(self.folder)
            problem = ""
            if job_record.belongs_to_other(record):
                problem = f"process {record['launcher'][0]} is already running this sweep"
            elif not job_record.is_running(record):
                return
            elif time.monotonic() > deadline:
                problem = f"process {record['process'][0]} of an earlier launch is still saving its run"
            if problem:
                raise ConfigError(f"{self.folder.parent}: {problem}; wait for it or stop it")
            time.sleep(0.1)

    def select_loss(self) -> float:
        """Return the loss by which settings are chosen; infinite if the run diverged. Raises ConfigError if
        the run was made before this loss was logged."""
        state, *_ = self.outcome()
        if state == "diverged":
            return math.inf
        loss = last_row(self.run / "metrics.jsonl").get(SELECT) if self.run else None
        if loss is None or math.isnan(loss):
            remedy = "remove this folder, and the same command trains it again"
            raise ConfigError(f"{self.run}: it has no {SELECT}, by which settings are chosen; {remedy}")
        return float(loss)


def folder_of(config: RunConfig, fingerprint: str) -> Path:
    """Return the run's folder. Raises ConfigError."""
    return identity.folder_of(config, precision_of(config, fingerprint), fingerprint)


def check_for_cluster(config: RunConfig) -> None:
    """Raise ConfigError if a job of a cluster would not do what the sweep expects."""
    if config.fresh:
        problem = "a job that Slurm requeues would begin anew each time"
        raise ConfigError(f"fresh: {problem}; remove the folders of the runs instead")
    if config.precision == "auto":  # a part of the run's name, by which the sweep finds the run
        problem = "auto may mean another precision on the machines of the cluster than here"
        raise ConfigError(f"precision: {problem}; give precision=bf16 or precision=fp32")


def precision_of(config: RunConfig, fingerprint: str) -> str:
    """Return the precision that ``auto`` means. Torch is imported only if it cannot be read from a run that
    has ended. Raises ConfigError."""
    if config.precision != "auto":
        return config.precision
    if not config.fresh and (folder := ended_folder(config, fingerprint)):
        return str(read_json(folder / "environment.json")["precision"])
    from training import device

    return device.choose(config.device, config.precision).precision


def keep_errors(jobs: Sequence[Job], ends: Sequence[JobReturn]) -> None:
    """Keep the errors that jobs could not record, as on a full disk. Slurm's launcher returns no ends."""
    for job, end in zip(jobs, ends, strict=False):
        # a fresh job's folder may still have the result of the old run
        has_result = job.run and has_ended(job.run) and not job.is_fresh
        if end.status == JobStatus.FAILED and not has_result:
            error = end._return_value
            is_of_files = isinstance(error, OSError)
            job.error = error_line(error) or described(error) if is_of_files else described(error)


def arm_hash(config: RunConfig, precision: str, fingerprint: str, ignored: Iterable[str]) -> str:
    """Return the hash shared by all runs that differ only in seed, learning rate and the ``ignored`` keys."""
    settings = identity.identity(config, precision, fingerprint) | {"seed": None}
    for key in ("optim.learning_rate", *ignored):
        group, _, name = key.partition(".")
        if group in settings:
            settings[group] = {**settings[group], name: None}
        settings["source"].pop(key, None)  # of a norm at another site, such as model.qk_norm
    return digest(settings)[:8]
