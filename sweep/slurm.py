"""Run a sweep as jobs of a Slurm cluster: hydra/launcher=slurm.

submitit writes, submits and requeues the jobs. But submitit waits for jobs by sacct, which takes forever if
the cluster keeps no accounting and a job was killed. This module therefore reads the end of a job from the
job's record (cli/job_record.py), or from squeue if the job did not record its end.
"""

import io
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, JobPaths

from data.errors import ConfigError
from sweep import job_record, signals
from training.signals import Interrupted

RECORD_INTERVAL = 1.0  # seconds between two readings of the records
SQUEUE_INTERVAL = 10.0  # seconds between calls of squeue
PATIENCE = 60  # seconds that cancelled jobs may take to save
END_STATES = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT "
    "GONE".split()
)


def check() -> None:
    """Raise ConfigError if this machine has no Slurm."""
    if not shutil.which("sbatch"):
        raise ConfigError(
            "hydra/launcher: slurm: sbatch not found; start the sweep on a machine of the cluster, "
            "or use hydra/launcher=joblib"
        )


class RequeuedJob:
    """The function that a job runs. submitit resubmits the job after SIGUSR2, Slurm's time-limit warning."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.call(*arguments)
        except Interrupted as end:
            # SIGTERM means cancelled or pre-empted. A cancelled job is no longer RUNNING; a pre-empted job
            # is RUNNING for a grace time, and would count as failed if it ended within that time.
            job_id = submitit.JobEnvironment().job_id  # SLURM_JOB_ID may be that of a whole array
            command = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%T"]
            state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            if end.number in (signal.SIGTERM, signal.SIGUSR2) and state == "RUNNING\n":
                subprocess.run(["scontrol", "requeue", job_id], check=False)
            raise

    def checkpoint(self, *arguments: Any) -> Any:
        return submitit.helpers.DelayedSubmission(self, *arguments)


def run_jobs(
    call: Callable[..., Any],
    settings: Mapping[str, Any],
    arguments: Sequence[tuple[Any, ...]],
    folders: Sequence[Path],
) -> None:
    """Run ``call(*arguments)`` in one job per record folder, and wait until all jobs end. Jobs of an
    earlier process that are still in the queue are not submitted again. An interrupt cancels all jobs; after
    an error they go on, and the same command waits for them.

    Args:
        settings: the settings of hydra.launcher.

    Raises:
        ConfigError: Slurm refuses the settings.
    """
    jobs: dict[str, Path] = {}
    try:
        with signals.deferred():
            queue = states()
            by_job = {job_record.read(folder, "slurm.json").get("job", ""): folder for folder in folders}
            jobs = {job: folder for job, folder in by_job.items() if not has_ended(queue, job)}
            if jobs:
                print(f"{len(jobs)} of the jobs are already in Slurm's queue", flush=True)
            new = [pair for pair in zip(arguments, folders, strict=True) if pair[1] not in jobs.values()]
            if new:
                jobs |= submit(call, settings, new)
        wait(jobs, Path(settings["submitit_folder"]))
    except Interrupted:
        cancel(jobs)
        raise


def submit(
    call: Callable[..., Any], settings: Mapping[str, Any], pairs: Sequence[tuple[tuple[Any, ...], Path]]
) -> dict[str, Path]:
    """Submit an array of jobs. Return Slurm's job ID -> folder of the job's record."""
    executor = submitit.AutoExecutor(
        settings["submitit_folder"], "slurm", slurm_max_num_timeout=settings["max_num_timeout"]
    )
    options = {k: v for k, v in settings.items() if k not in ("submitit_folder", "max_num_timeout")}
    executor.update_parameters(**{f"slurm_{key}": value for key, value in options.items()})
    try:
        with redirect_stderr(io.StringIO()):  # submitit prints the error as well
            submitted = executor.map_array(
                RequeuedJob(call), *zip(*(arguments for arguments, _ in pairs), strict=True)
            )
    except FailedJobError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"hydra.launcher: {reason}; set what your cluster requires") from None
    jobs = {job.job_id: folder for job, (_, folder) in zip(submitted, pairs, strict=True)}
    for job, folder in jobs.items():
        job_record.write(folder, {"job": job}, "slurm.json")
    return jobs


def wait(jobs: Mapping[str, Path], folder: Path) -> None:
    """Wait until each record says that the job has ended; write it for jobs that Slurm ended or lost."""
    left, gone_before, last_squeue = dict(jobs), set[str](), time.monotonic()
    while left := unfinished(left):
        time.sleep(RECORD_INTERVAL)
        if time.monotonic() - last_squeue < SQUEUE_INTERVAL:
            continue
        last_squeue = time.monotonic()
        with suppress(ConfigError):  # Slurm may not answer for a while
            queue = states()
            ended = {job for job in left if has_ended(queue, job)}
            for job in ended & gone_before:  # seen twice, as a shared disk may show a job's last write late
                output = JobPaths(folder, job).stderr
                error = f"its Slurm job {job} has ended: {queue.get(job, 'GONE')}; see {output}"
                job_record.write(left[job], job_record.read(left[job]) | {"state": "ended", "error": error})
            gone_before = ended


def unfinished(jobs: Mapping[str, Path]) -> dict[str, Path]:
    return {job: folder for job, folder in jobs.items() if job_record.read(folder).get("state") != "ended"}


def cancel(jobs: Mapping[str, Path]) -> None:
    """Cancel the waiting jobs and the running jobs, and wait until the running jobs have saved."""
    if not (left := unfinished(jobs)):
        return
    print(f"cancelling jobs in Slurm: {len(left)}", file=sys.stderr, flush=True)
    subprocess.run(["scancel", "--quiet", *left], check=False)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(ConfigError):
            queue = states()
            if all(has_ended(queue, job) for job in left):
                return
        time.sleep(RECORD_INTERVAL)


def states() -> dict[str, str]:
    """Return the state of each job of this user that is in Slurm's queue or was there minutes ago.

    Raises:
        ConfigError: Slurm does not answer.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i %T"]
    squeue = subprocess.run(command, capture_output=True, text=True, check=False)
    if squeue.returncode:
        raise ConfigError(f"squeue: {' '.join(squeue.stderr.split())}; check that Slurm is running")
    return dict(line.split() for line in squeue.stdout.splitlines())


def has_ended(queue: Mapping[str, str], job: str) -> bool:
    return queue.get(job, "GONE") in END_STATES
