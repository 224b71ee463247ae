"""Train runs as processes, several at once. A sweep (train.py -m) and a study (ablate.py) are each a list of
ordinary commands, ``python train.py …``.

    LOGS/NAME.log    what the run NAME printed

Runs that have ended are skipped. If a run fails, the others continue. A signal is passed on to the runs: they
save, then end.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from signal import SIGKILL, SIGTERM

from filelock import FileLock, Timeout

from data.errors import ConfigError
from training.environment import ROOT, duration
from training.run_folder import has_ended, leaking_losses, read_json, read_status
from training.signals import PATIENCE, Stop

TRAIN = ROOT / "train.py"
AUTO_ON_A_CLUSTER = (
    "precision: auto may become another precision on the cluster's machines; "
    "give precision=bf16 or precision=fp32"
)
PAUSE = 0.1  # seconds between two checks of the processes


@dataclass(frozen=True)
class Job:
    """A run to train: the name of its folder in runs_dir, and the words after ``python train.py``."""

    name: str
    overrides: tuple[str, ...]

    def sets(self, key: str) -> bool:
        return any(word.startswith(f"{key}=") for word in self.overrides)


def pending(jobs: Iterable[Job], runs_dir: Path) -> list[Job]:
    """Return the jobs whose runs have not ended, each once."""
    todo = {job.name: job for job in jobs if job.sets("fresh") or not has_ended(runs_dir / job.name)}
    return [*todo.values()]


def is_trained(folder: Path) -> bool:
    """Return whether another process is training a run. It may have outlived the command that started it."""
    if not folder.exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def command(job: Job, threads: int, config_dir: str | None) -> list[str]:
    """Return the command of a run. ``threads`` becomes train.threads unless the job sets that key.
    hydra.mode=RUN overrides a preset's MULTIRUN, which would start a sweep."""
    folder = ["--config-dir", config_dir] if config_dir else []
    extra = [] if job.sets("train.threads") else [f"train.threads={threads}"]
    return [sys.executable, str(TRAIN), *folder, *job.overrides, *extra, "hydra.mode=RUN"]


# ---------------------------------------------------------------------------------------------------
# This machine


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES. This does not import
    torch. The Windows Subsystem for Linux has one /dev/dxg for all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each not in ("", "-1")]
    return [str(number) for number, _ in enumerate(glob("/dev/nvidia[0-9]*") or glob("/dev/dxg"))]


def default_n_jobs(device: str) -> int:
    """Return how many runs to train at once: one per GPU, or one per core without GPUs."""
    if device.startswith("cuda:"):
        return 1
    return (len(gpus()) if device in ("auto", "cuda") else 0) or cores()


# ---------------------------------------------------------------------------------------------------
# Processes


@dataclass
class Child:
    """A running process. ``slot``: a number below ``n_jobs`` that no other running process has. It determines
    the GPU."""

    job: Job
    slot: int
    process: subprocess.Popen[bytes]
    started: float

    @classmethod
    def start(cls, job: Job, slot: int, words: list[str], log: Path) -> "Child":
        """Start a run. It sees one GPU, unless its command names a GPU. It has its own process group, so that
        Ctrl-C in a terminal reaches only this process. Otherwise the run would get two signals, and end
        without saving."""
        environ = dict(os.environ)
        if (devices := gpus()) and not any(word.startswith("device=cuda:") for word in job.overrides):
            environ["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, process_group=0
            )
        return cls(job, slot, process, time.monotonic())

    def status(self, folder: Path, log: Path) -> int:
        """Return 0 if the run in ``folder`` has ended, even if another process trained it. Otherwise return
        the exit status of the process, or 1 if that is 0. For a job with fresh=true whose run has ended,
        return the exit status unchanged."""
        status = self.process.returncode
        if has_ended(folder):
            return status if self.job.sets("fresh") else 0
        if status:
            return status
        with log.open("a") as file:
            file.write("its run has another name than planned: was the norm or the placement edited?\n")
        return 1


class TwoSignals(Stop):
    """Inside ``with``, ``number`` is the first signal received. ``twice`` tells whether another signal came
    more than PATIENCE seconds later."""

    twice = False

    def record(self, number: int, frame: object) -> None:
        if self.number and time.monotonic() - self.since > PATIENCE:
            self.twice = True
        elif not self.number:
            super().record(number, frame)


@contextmanager
def none_left(running: list[Child]) -> Iterator[None]:
    """Context manager that finally tells the runs still in ``running`` to save and end. There are such runs
    only after an error, such as a full disk or a closed pipe."""
    try:
        yield
    finally:
        for child in running:
            child.process.terminate()


def run_all(
    jobs: Sequence[Job], runs_dir: Path, logs: Path, n_jobs: int, config_dir: str | None = None
) -> dict[str, int]:
    """Train the unfinished runs, ``n_jobs`` at once, and print a line for each. Return exit statuses by name.
    A run that had already ended has status 0.

    Raises:
        Interrupted: at a signal, after each run has saved. A second signal kills the runs.
    """
    waiting = pending(jobs, runs_dir)
    statuses = {job.name: 0 for job in jobs}
    progress = Progress(len(statuses), len(waiting), runs_dir, logs, n_jobs)
    threads = max(1, cores() // n_jobs)
    running: list[Child] = []
    sent, is_told = None, False
    with TwoSignals() as stop, none_left(running):
        while running or (waiting and not stop.number):
            count = 0 if stop.number else n_jobs - len(running)
            free = (job for job in waiting if not is_trained(runs_dir / job.name))
            for job in [*islice(free, count)]:
                waiting.remove(job)
                slot = min({*range(n_jobs)} - {child.slot for child in running})
                words = command(job, threads, config_dir)
                running.append(Child.start(job, slot, words, logs / f"{job.name}.log"))
            if not (running or stop.number or is_told):
                print(f"{waiting[0].name}: another process trains it; waiting", flush=True)
                is_told = True
            signal = SIGKILL if stop.twice else SIGTERM if stop.number else None
            if signal and signal != sent:
                print(f"{signal.name} to {len(running)} runs", file=sys.stderr, flush=True)
                for child in running:
                    child.process.send_signal(signal)
                sent = signal
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                name = child.job.name
                if child.process.returncode and is_trained(runs_dir / name):
                    waiting.append(child.job)  # another process was faster: wait for it
                    continue
                statuses[name] = child.status(runs_dir / name, logs / f"{name}.log")
                if not stop.number:
                    progress.ended(name, statuses[name], time.monotonic() - child.started)
            time.sleep(PAUSE)
        stop.check()
    return statuses


# ---------------------------------------------------------------------------------------------------
# What is printed


class Progress:
    """Prints how many runs are to be trained, and a line for each run that ends: its loss, or why it
    failed."""

    def __init__(self, runs: int, todo: int, runs_dir: Path, logs: Path, n_jobs: int) -> None:
        self.runs, self.ends, self.n_jobs = runs, runs - todo, n_jobs
        self.runs_dir, self.logs = runs_dir, logs
        self.seconds: list[float] = []  # of each run that has finished
        before = f"{self.ends} ended before, " if self.ends else ""
        counts = f"{before}{todo} to do, {min(n_jobs, todo)} at once" if todo else "all have ended"
        print(f"{runs} runs: {counts}", flush=True)

    def ended(self, name: str, status: int, seconds: float | None = None) -> None:
        """Print a line for a run. ``seconds``: how long it took, for an estimate of the time left."""
        self.ends += 1
        self.seconds += [seconds] if seconds and not status else []
        line = f"{self.ends}/{self.runs}  {name}  {self.outcome(name, status)}"
        if self.seconds and (left := self.runs - self.ends):
            mean = sum(self.seconds) / len(self.seconds)
            line += f"  {duration(mean * max(1, left / self.n_jobs))} left"
        print(line, flush=True)

    def outcome(self, name: str, status: int) -> str:
        if status:
            return f"failed (status {status}): {last_line(self.logs / f'{name}.log')}"
        recorded = read_status(self.runs_dir / name)
        if recorded.get("state") == "diverged":
            return "diverged"
        leaks = "val/loss" in leaking_losses(read_json(self.runs_dir / name / "certificate.json"))
        loss = f"{recorded.get('final', math.nan):.4f}"
        return loss + " collapsed" * bool(recorded.get("collapsed")) + " LEAKS" * leaks


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def check(statuses: Mapping[str, int], logs: Path) -> None:
    """Print the last line that each failed run printed. Raises ConfigError if a run failed."""
    failed = [name for name, status in statuses.items() if status]
    for name in failed:
        log = logs / f"{name}.log"
        print(f"{name}: {last_line(log)} ({log})", file=sys.stderr, flush=True)
    if failed:
        counts = f"{len(failed)} of {len(statuses)} failed"
        raise ConfigError(f"runs: {counts}, see above; the same command trains them again")
