"""The runs of a sweep as jobs of a Slurm cluster: hydra/launcher=slurm.

submitit writes, submits and requeues the jobs. It would wait for them by sacct, and for ever where a cluster
keeps no accounts and a job was killed; so how they end is known from their records (cli/job_record.py), and
of those that leave none, from squeue.
"""

import io
import os
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

from cli import job_record
from system import signals
from system.errors import ConfigError

LOOK = 1.0  # seconds between looks at the records
ASK = 10.0  # seconds between questions to Slurm
PATIENCE = 60  # seconds that cancelled jobs may take to save
OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT GONE".split()
)


def check() -> None:
    """Raises ConfigError where this machine has no Slurm."""
    if not shutil.which("sbatch"):
        raise ConfigError(
            "hydra/launcher: slurm: there is no sbatch here; start the sweep on a machine of the cluster, "
            "or with hydra/launcher=joblib on this one"
        )


class Job:
    """What submitit calls in a job, and begins again when Slurm's warning, SIGUSR2, has come."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.call(*arguments)
        except signals.Interrupted as end:
            # A cancelled job does not count as running any more. One that is pre-empted does, for a time of
            # grace, and would have failed by ending before that is over.
            number = os.environ["SLURM_JOB_ID"]
            asked = ["squeue", "--noheader", f"--jobs={number}", "--format=%T"]
            state = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            if end.number == signal.SIGTERM and state == "RUNNING\n":
                subprocess.run(["scontrol", "requeue", number], check=False)
            raise

    def checkpoint(self, *arguments: Any) -> Any:
        return submitit.helpers.DelayedSubmission(self, *arguments)


def do(
    call: Callable[..., Any],
    settings: Mapping[str, Any],
    arguments: Sequence[tuple[Any, ...]],
    folders: Sequence[Path],
) -> None:
    """Do ``call(*arguments)`` of each folder's record in a job of its own, until each is over. A job that an
    earlier process submitted, and that Slurm still has, is not submitted again. If this is interrupted, no
    job goes on.

    Args:
        settings: those of hydra.launcher.

    Raises:
        ConfigError: Slurm refuses them.
    """
    jobs: dict[str, Path] = {}
    try:
        with signals.deferred():
            known = states()
            jobs = {
                job: folder for folder in folders if not is_over(known, job := job_record.cluster_job(folder))
            }
            if jobs:
                print(f"{len(jobs)} of them are in Slurm's queue already", flush=True)
            new = [pair for pair in zip(arguments, folders, strict=True) if pair[1] not in jobs.values()]
            if new:
                jobs |= submitted(call, settings, new)
        wait(jobs, Path(settings["submitit_folder"]))
    except BaseException:
        cancel(jobs)
        raise


def submitted(
    call: Callable[..., Any], settings: Mapping[str, Any], pairs: Sequence[tuple[tuple[Any, ...], Path]]
) -> dict[str, Path]:
    """The number that Slurm gave each job, with its folder."""
    at_start = {key: settings[key] for key in ("submitit_folder", "max_num_timeout")}
    others = {f"slurm_{key}": value for key, value in settings.items() if key not in at_start}
    executor = submitit.AutoExecutor(
        at_start["submitit_folder"], "slurm", slurm_max_num_timeout=at_start["max_num_timeout"]
    )
    executor.update_parameters(**others)
    try:
        with redirect_stderr(io.StringIO()):  # where submitit says the same
            made = executor.map_array(Job(call), *zip(*(arguments for arguments, _ in pairs), strict=True))
    except FailedJobError as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"hydra.launcher: {why}; give what your cluster asks for") from None
    jobs = {job.job_id: folder for job, (_, folder) in zip(made, pairs, strict=True)}
    for job, folder in jobs.items():
        job_record.write_cluster_job(folder, job)
    return jobs


def wait(jobs: Mapping[str, Path], folder: Path) -> None:
    """Until each job's record says how it ended; of one that Slurm ended, or lost, it is written here."""
    left, gone, asked = dict(jobs), set[str](), time.monotonic()
    while left := unfinished(left):
        time.sleep(LOOK)
        if time.monotonic() - asked < ASK:
            continue
        asked = time.monotonic()
        with suppress(ConfigError):  # Slurm may not answer for a while
            known = states()
            now = {job for job in left if is_over(known, job)}
            for job in now & gone:  # seen twice: on a shared disk, the last that it wrote may come late
                output = JobPaths(folder, job).stderr
                error = f"its Slurm job {job} is over: {known.get(job, 'GONE')}; see {output}"
                job_record.write(left[job], job_record.read(left[job]) | {"state": "ended", "error": error})
            gone = now


def unfinished(jobs: Mapping[str, Path]) -> dict[str, Path]:
    return {job: folder for job, folder in jobs.items() if job_record.read(folder).get("state") != "ended"}


def cancel(jobs: Mapping[str, Path]) -> None:
    """End those that run, which save before, and those that wait for their turn."""
    if not (left := unfinished(jobs)):
        return
    print(f"cancelling {len(left)} jobs of Slurm", file=sys.stderr, flush=True)
    subprocess.run(["scancel", "--quiet", *left], check=False)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(ConfigError):
            known = states()
            if all(is_over(known, job) for job in left):
                return
        time.sleep(LOOK)


def states() -> dict[str, str]:
    """Of each job of this user that Slurm has, or has had in the last minutes.

    Raises:
        ConfigError: it does not answer.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i %T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"squeue: {' '.join(done.stderr.split())}; see whether Slurm is up")
    return dict(line.split() for line in done.stdout.splitlines())


def is_over(known: Mapping[str, str], job: str) -> bool:
    return known.get(job, "GONE") in OVER
