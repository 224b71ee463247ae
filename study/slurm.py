"""Train runs as one array of Slurm jobs, by submitit. A run that is pre-empted or reaches the time limit is
requeued and resumes.

    LOGS/NAME.log      what the run NAME printed
    LOGS/slurm.json    the IDs of the jobs, so that the same command finds them in the queue
    LOGS/submitit/     submitit's files, with Slurm's own messages

status.json tells whether a run has ended; squeue tells whether its job is alive. sacct would tell both, but
it needs Slurm's accounting, which not every cluster has.
"""

import io
import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import submitit
import yaml
from submitit.core.utils import FailedJobError

from cli.errors import CONF
from data.errors import ConfigError
from data.files import write_atomically
from study.launch import Job, Progress, command, pending
from training.environment import ROOT
from training.run_folder import has_ended, read_json

PAUSE = 10.0  # seconds between two checks of the queue and the runs
DEFAULTS = CONF / "hydra" / "launcher" / "slurm.yaml"


class Command:
    """A run as a job. submitit pickles this class by its name.

    Slurm signals this process, and perhaps the run as well. The run takes two signals within a second as one.
    """

    def __call__(self, words: list[str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        signal.signal(signal.SIGTERM, self.pre_empted)  # submitit's handler ignores it
        if status := self.wait():
            raise SystemExit(status)

    def wait(self) -> int:
        """Return the run's exit status. This polls, because Popen.wait holds a lock for which a signal
        handler would wait forever."""
        while (status := self.process.poll()) is None:
            time.sleep(0.2)
        return status

    def end(self) -> None:
        """Let the run save and end."""
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def checkpoint(self, words: list[str], log: Path) -> submitit.helpers.DelayedSubmission:
        """Return the job that submitit requeues. submitit calls this method at SIGUSR2, before the time
        limit."""
        self.end()
        return submitit.helpers.DelayedSubmission(Command(), words, log)

    def pre_empted(self, *_: object) -> None:
        """Handle SIGTERM. If Slurm still shows the job as RUNNING, it was pre-empted: requeue it. Otherwise
        it was cancelled."""
        self.end()
        job = submitit.JobEnvironment().job_id
        squeue = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
        if subprocess.run(squeue, capture_output=True, text=True, check=False).stdout == "RUNNING\n":
            subprocess.run(["scontrol", "requeue", job], check=False)
        raise SystemExit(128 + signal.SIGTERM)


def run_all(
    jobs: Sequence[Job], runs_dir: Path, logs: Path, config_dir: str | None, options: Mapping[str, Any]
) -> dict[str, int]:
    """Train the runs that have not ended. Return statuses by name: 0, or 1 for a run that failed. Raises
    ConfigError as ``submit`` does."""
    return wait(submit(jobs, runs_dir, logs, config_dir, options), runs_dir, logs)


def submit(
    jobs: Sequence[Job], runs_dir: Path, logs: Path, config_dir: str | None, options: Mapping[str, Any]
) -> dict[str, str | None]:
    """Submit the runs that have not ended and are not in the queue. Return the ID of each job by the run's
    name; None for a run that has ended.

    Args:
        options: values that replace those of conf/hydra/launcher/slurm.yaml.

    Raises:
        ConfigError: there is no Slurm, or it refuses the options.
    """
    if not shutil.which("sbatch"):
        raise ConfigError("launcher: slurm: sbatch is not found; start this on a machine of the cluster")
    settings = yaml.safe_load(DEFAULTS.read_text(encoding="utf-8")) | dict(options)
    waiting, alive = pending(jobs, runs_dir), queue()
    if alive is None:
        raise ConfigError("launcher: slurm: squeue failed, so the queue is unknown; try again")
    known = {name: number for name, number in read_json(logs / "slurm.json").items() if number in alive}
    new = [job for job in waiting if job.name not in known]
    queued = len(waiting) - len(new)
    print(f"{len(waiting)} runs to do: {queued} in Slurm's queue, {len(new)} new", flush=True)
    if new:
        words = [command(job, settings["cpus_per_task"], config_dir) for job in new]
        ids = array(words, [logs / f"{job.name}.log" for job in new], logs / "submitit", settings)
        known |= {job.name: number for job, number in zip(new, ids, strict=True)}
        write_atomically(logs / "slurm.json", json.dumps(known))
        print("Ctrl-C here does not end the jobs; to end them: scancel", ids[0].split("_")[0], flush=True)
    return {job.name: known.get(job.name) for job in jobs}


def array(words: list[list[str]], logs: list[Path], folder: Path, settings: dict[str, Any]) -> list[str]:
    """Submit commands as one array. Return the ID of each job. Raises ConfigError."""
    options = {key: value for key, value in settings.items() if not key.startswith("_")}
    executor = submitit.AutoExecutor(folder, "slurm", slurm_max_num_timeout=options.pop("max_num_timeout"))
    # so that the job can import this file from any folder
    path = f'export PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    options |= {"name": "normgpt", "setup": [*options["setup"], path]}
    try:
        executor.update_parameters(**{f"slurm_{key}": value for key, value in options.items()})
        with redirect_stderr(io.StringIO()):  # submitit also prints the error that it raises
            return [job.job_id for job in executor.map_array(Command(), words, logs)]
    except (FailedJobError, NameError) as error:  # NameError: there is no such option
        reason = " ".join(str(error).split())
        raise ConfigError(f"launcher: slurm: {reason}; give the options of your cluster") from None


def queue() -> set[str] | None:
    """Return the IDs of this user's jobs that wait or run; None if Slurm does not answer."""
    words = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    squeue = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if squeue.returncode else {*squeue.stdout.split()}


def wait(ids: Mapping[str, str | None], runs_dir: Path, logs: Path) -> dict[str, int]:
    """Wait until each run has ended, or its job has left the queue; print a line for each. Return statuses as
    ``run_all`` does. ``ids``: as ``submit`` returns them."""
    left = {name: number for name, number in ids.items() if number}
    statuses = dict.fromkeys(ids, 0)
    progress = Progress(len(ids), len(left), runs_dir, logs, len(left))
    gone: set[str] = set()
    while left:
        alive = queue()
        for name, number in [*left.items()]:
            ended = has_ended(runs_dir / name)
            if ended or (alive is not None and number not in alive and name in gone):
                statuses[name] = int(not ended)
                progress.ended(name, statuses[name])
                del left[name]
        # a job has failed if two checks miss it: a shared disk may show its last write late
        gone = {name for name, number in left.items() if alive is not None and number not in alive}
        if left:
            time.sleep(PAUSE)
    return statuses
