"""Show a sweep on the terminal: a line as each run ends, the remaining time, and a table at the end."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from comparison import commands
from sweep import job_record
from sweep.job import Job
from training.environment import duration
from training.run_folder import leaks

RESULTS = ("finished", "diverged")  # states that do not count as failures
INTERVAL = 0.3  # seconds between two readings of the jobs' folders, if there are few
SILENCE = 2 - 2 * INTERVAL  # seconds without a line where a bar cannot be drawn
MANY = 100  # the most runs that the table at the end lists whatever their end
SHARE = 0.01  # the most of a core that the readings may take from the runs


class ProgressWatcher:
    """A thread that reads the folders of jobs and prints their progress, inside ``with``.

    Args:
        jobs: all jobs of the sweep. Jobs that cannot run are printed at once; runs that had ended before this
            sweep are not printed.
        todo: the jobs that are launched in this sweep.
    """

    def __init__(self, jobs: Sequence[Job], todo: Sequence[Job]) -> None:
        self.jobs, self.todo = jobs, todo
        self.stdout = sys.stdout  # a job that runs in this process replaces sys.stdout
        self.ended = sum(job.done for job in jobs)
        self.unprinted = [job for job in jobs if not job.done]
        self.work = sum(job.work for job in todo)
        self.start = self.last_print = time.monotonic()
        self.line = ""  # what is running, printed where a bar cannot be drawn
        self.trained_at_start = self.work_trained()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.width = max((len(job.name) for job in jobs), default=0)
        self.bar = None
        if self.stdout.isatty():
            console = Console(file=self.stdout, highlight=False)
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
            self.bar = Progress(
                *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self.task = self.bar.add_task("", total=self.work or 1)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        self.update()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.update()
        if self.bar:
            self.bar.stop()

    def poll(self) -> None:
        next_reading = 0.0
        while not self.stop.wait(INTERVAL):
            if time.monotonic() >= next_reading:
                began = time.thread_time()
                self.update()
                next_reading = time.monotonic() + (time.thread_time() - began) / SHARE
            self.break_silence()

    def update(self) -> None:
        """Read the jobs' folders; print the jobs that have ended since the last call."""
        digits = len(str(len(self.jobs)))
        for job in [job for job in self.unprinted if job.has_ended()]:
            self.unprinted.remove(job)
            self.ended += 1
            left = f"  {self.time_left()}" if self.unprinted else ""
            count = f"{self.ended:>{digits}}/{len(self.jobs)}"
            self.print(f"{count}  {job.name:<{self.width}}  {outcome_line(job)}{left}")
        if self.bar:
            self.bar.update(self.task, completed=self.work_done(), description=self.running())
        else:
            self.line = " " * (2 * digits + 3) + "; ".join(filter(None, (self.running(), self.time_left())))

    def break_silence(self) -> None:
        """Print what was running at the last reading, if there is no bar and nothing was printed for
        SILENCE."""
        if not self.bar and self.unprinted and time.monotonic() - self.last_print > SILENCE:
            self.print(self.line)

    def print(self, line: str) -> None:
        self.last_print = time.monotonic()
        if self.bar:
            self.bar.console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=self.stdout, flush=True)

    def running(self) -> str:
        """Return the names of the running jobs, each with its fraction done."""
        jobs = [job for job in self.unprinted if job_record.read(job.folder).get("state") == "running"]
        shown = ", ".join(f"{job.name} {job.fraction_done():.0%}" for job in jobs)
        return f"running: {shown}" if jobs else "none is running"

    def work_done(self) -> float:
        return sum(job.work * job.fraction_done() for job in self.todo)

    def work_trained(self) -> float:
        return sum(job.work * job.fraction_trained() for job in self.todo)

    def time_left(self) -> str:
        """Return the remaining time, estimated from the pace so far; "" before as much is done as one run
        takes, as the start of the first runs says little."""
        # what was trained, as a run that failed or diverged has ended, but did less
        done = self.work_trained() - self.trained_at_start
        if done <= 0 or done < self.work / len(self.todo):
            return ""
        pace = (time.monotonic() - self.start) / done
        return f"about {duration(pace * (self.work - self.work_done()))} left"


def outcome_line(job: Job) -> str:
    state, loss, reason = job.outcome()
    if state == "finished":
        return f"{loss:.4f} LEAKS" if job.run and leaks(job.run) else f"{loss:.4f}"
    return f"{state}: {reason}"


def summary(jobs: Sequence[Job]) -> int:
    """Print a table of all jobs, of very many only those that have not finished; and the failed ones again on
    stderr. Return the number of failed jobs."""
    jobs = [*{job.run or job.overrides: job for job in jobs}.values()]  # a trial may be of several rounds
    outcomes = [(job, *job.outcome()) for job in jobs]
    table = Table("run", "state", "val/full_loss", "why", box=box.SIMPLE_HEAD)
    for job, state, _, reason in outcomes:
        if state != "finished" or len(jobs) <= MANY:
            loss = outcome_line(job) if state == "finished" else ""
            table.add_row(Text(job.name), state, loss, Text(reason))
    print()
    console: Any = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if table.row_count:
        console.print(table)
    if len(jobs) > MANY:
        print(f"{sum(state == 'finished' for _, state, *_ in outcomes)} of {len(jobs)} runs have finished")
    if command := commands.compare({job.run for job in jobs if job.run and job.run.exists()}):
        print(f"compare them: {command}", flush=True)
    failed = [outcome for outcome in outcomes if outcome[1] not in RESULTS]
    for job, state, _, reason in failed:
        log = job.folder / "log.txt"
        output = f"; its output is in {log}" if log.exists() else ""
        message = reason or state
        name = "" if message.startswith(job.name) else f"{job.name}: "
        print(f"error: {name}{message}{output}", file=sys.stderr)
    return len(failed)
