"""A sweep on the terminal: a line as each run ends, how long the rest will take, and a table at the end."""

import shlex
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cli import job_record
from rundir import folder

if TYPE_CHECKING:
    from sweep.job import Job

ENDS = ("finished", "diverged")  # both are results
EVERY = 0.3  # seconds between looks


class Watch:
    """Looks at the jobs' folders, in a thread, from ``with`` to its end.

    Args:
        jobs: all of the sweep; those that are over by then are said to be at once, but for those done before.
        todo: those among them that are being done.
    """

    def __init__(self, jobs: "Sequence[Job]", todo: "Sequence[Job]") -> None:
        self.jobs, self.todo = jobs, todo
        self.out = sys.stdout  # a job in this process has its own
        self.over = sum(job.done for job in jobs)
        self.unsaid = [job for job in jobs if not job.done]
        self.work = sum(job.work for job in todo)
        self.start = self.said = time.monotonic()
        self.at_start = self.work_done()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.looking, daemon=True)
        self.width = max((len(job.name) for job in jobs), default=0)
        self.bar = None
        if self.out.isatty():
            console = Console(file=self.out, highlight=False)
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
            self.bar = Progress(
                *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self.task = self.bar.add_task("", total=self.work or 1)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        self.look()
        if self.bar:
            self.bar.stop()

    def looking(self) -> None:
        while not self.ended.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Say what is new."""
        for job in [job for job in self.unsaid if job.is_over()]:
            self.unsaid.remove(job)
            self.over += 1
            left = f"  {self.left()}" if self.unsaid else ""
            count = f"{self.over:>{len(str(len(self.jobs)))}}/{len(self.jobs)}"
            self.say(f"{count}  {job.name:<{self.width}}  {in_words(job)}{left}")
        now = time.monotonic()
        if self.bar:
            self.bar.update(self.task, completed=self.work_done(), description=self.running())
        elif now - self.said > max(30, 0.05 * (now - self.start)) and self.unsaid:
            self.say(f"{' ' * (2 * len(str(len(self.jobs))) + 3)}{self.running()}; {self.left()}")

    def say(self, line: str) -> None:
        self.said = time.monotonic()
        if self.bar:
            self.bar.console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=self.out, flush=True)

    def running(self) -> str:
        """Which jobs run, and how far they are."""
        found = [job for job in self.unsaid if job_record.read(job.folder).get("state") == "running"]
        return "running: " + ", ".join(f"{job.name} {job.part_done():.0%}" for job in found)

    def work_done(self) -> float:
        return sum(job.work * job.part_done() for job in self.todo)

    def left(self) -> str:
        """The time that the rest takes at the pace so far."""
        done = self.work_done()
        pace = (time.monotonic() - self.start) / max(done - self.at_start, 1e-9)
        return f"about {duration(pace * (self.work - done))} left" if done > self.at_start else ""


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def in_words(job: "Job") -> str:
    """How a job ended, in a line."""
    state, loss, reason = job.outcome()
    if state == "finished":
        return f"{loss:.4f}" + " LEAKS in training" * bool(job.run and folder.leaks(job.run))
    return f"{state}: {reason}"


def summary(jobs: "Sequence[Job]") -> int:
    """A table of all jobs; those that failed once more, on stderr. Returns how many did."""
    table = Table("run", "state", "val/full_loss", "why", box=box.SIMPLE_HEAD)
    failed = 0
    for job in jobs:
        state, loss, reason = job.outcome()
        table.add_row(Text(job.name), state, f"{loss:.4f}" if state == "finished" else "", Text(reason))
        failed += state not in ENDS
    print()
    console: Any = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    folders = sorted({str(job.run.parent) for job in jobs if job.run})
    if folders:
        print(f"compare them: python compare.py {shlex.join(folders)}", flush=True)
    for job in jobs:
        state, _, reason = job.outcome()
        if state not in ENDS:
            log = job.folder / "log.txt"
            where = f"; its output is in {log}" if log.exists() else ""
            said = reason or state
            name = "" if said.startswith(job.name) else f"{job.name}: "
            print(f"error: {name}{said}{where}", file=sys.stderr)
    return failed
