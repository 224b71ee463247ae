"""Log a run: metrics.jsonl, status.json, wandb, and its progress on the terminal."""

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from data.files import jsonable, name_in_errors, write_atomically
from probe.statistics import on_host
from training.batches import Windows
from training.ddp import Ranks
from training.device import Compute
from training.environment import duration
from training.run_folder import Run, read_rows
from training.wandb_sink import Wandb

FORMATS = {"train/loss": "loss {:.3f}", "val/loss": "val {:.3f}", "train/tokens_per_s": "{:,.0f} tokens/s"}
EVERY = 2.0  # seconds between printed lines if stdout is not a terminal


class RunLog:
    """Inside ``with``, writes the rows of a run from step ``start`` on. Rows that an earlier process wrote
    for these steps are dropped. The clock starts at ``with``.

    Attributes:
        best: step and val/loss of the best evaluation so far, step 0 left out; None before the first.
        train_loss: the latest training loss.
        clock: measures the run's seconds.
        last_step: the step after the last update.
    """

    def __init__(
        self,
        run: Run,
        compute: Compute,
        ranks: Ranks,
        wandb: Wandb,
        start: int,
        best: dict[str, Any] | None,
    ) -> None:
        train = run.config.train
        self.run, self.compute, self.ranks, self.wandb = run, compute, ranks, wandb
        self.start, self.last_step, self.best = start, train.steps, best
        self.tokens_per_step = train.batch_size * run.config.model.block_size
        self.timed_from = start  # the next train/tokens_per_s counts from this step on

    def __enter__(self) -> Self:
        run, start = self.run, self.start
        rows = read_rows(run.metrics, start) if start else []  # [] on the ranks that do not write
        losses = [row["train/loss"] for row in rows if "train/loss" in row]
        seconds = rows[-1]["seconds"] if rows else 0.0
        self.train_loss, seconds = self.ranks.broadcast([losses[-1] if losses else math.inf, seconds])
        if run.writes:
            write_atomically(run.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        self.clock = Clock(self.compute.synchronize, seconds)
        self.progress = ProgressLine(start, self.last_step)
        self.stream = self.run.metrics.open("a", encoding="utf-8")
        self.progress.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.bar.stop()
        self.stream.close()  # flushes, which fails on a full disk

    def sync(self) -> None:
        """Write the rows to the disk, so that they survive a power failure."""
        os.fsync(self.stream.fileno())

    def update_best(self, step: int, row: dict[str, Any]) -> bool:
        """If ``row`` has the lowest val/loss so far, make it the ``best`` and return True."""
        lowest = self.best["val/loss"] if self.best else math.inf
        if (step == 0 and self.last_step > 0) or not row["val/loss"] < lowest:
            return False
        self.best = {"step": step, "val/loss": row["val/loss"]}
        return True

    def write(self, step: int, row: dict[str, Any]) -> dict[str, Any]:
        """Write the row that was measured at ``step``, unless it is empty. Returns the row as plain numbers.

        Args:
            row: numbers, and tensors on the device; all tensors are copied to the host together.
        """
        if row:
            row |= on_host({name: value for name, value in row.items() if isinstance(value, Tensor)})
            if "train/loss" in row:
                self.train_loss = row["train/loss"]
                tokens = (step + 1 - self.timed_from) * self.tokens_per_step
                row["train/tokens_per_s"] = tokens / self.clock.lap()
                self.timed_from = step + 1
            tokens, seconds = step * self.tokens_per_step, self.clock.seconds()
            full_row = {"step": step, "tokens": tokens, "seconds": seconds} | row
            with name_in_errors(self.run.metrics):
                self.stream.write(json.dumps(jsonable(full_row), allow_nan=False) + "\n")
                self.stream.flush()  # so that a kill loses no row
            self.wandb.log(full_row)
            final, peak = row.get("val/full_loss"), self.compute.peak_memory()
            self.run.write_status(at_once=False, step=step, best=self.best, final=final, peak_memory=peak)
        self.progress.update(step, row)
        return row


class Clock:
    """Measures a run's seconds, from the creation of the clock on.

    Args:
        synchronize: waits until the device has done its work.
        earlier: seconds that the run took in processes before this one.

    Attributes:
        spent: seconds that were not spent on training, by purpose.
    """

    def __init__(self, synchronize: Callable[[], None], earlier: float = 0.0) -> None:
        self.synchronize, self.earlier = synchronize, earlier
        self.start = time.perf_counter()
        self.spent: dict[str, float] = defaultdict(float)
        self.mark = 0.0  # seconds of training at the last lap

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return self.earlier + time.perf_counter() - self.start

    def training(self) -> float:
        """Return the seconds that this process has spent on training."""
        return time.perf_counter() - self.start - sum(self.spent.values())

    def lap(self) -> float:
        """Return the seconds spent on training since the last call."""
        previous, self.mark = self.mark, self.training()
        return self.mark - previous

    @contextmanager
    def aside(self, purpose: str) -> Iterator[None]:
        """Context manager: count the block's seconds, with the device's work, as spent on ``purpose``."""
        self.synchronize()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            self.spent[purpose] += time.perf_counter() - start


class ProgressLine:
    """A live line on a terminal; elsewhere a plain line for each evaluation and every two seconds or so."""

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps = first, steps  # the first step of this process, and the last of the run
        self.latest: dict[str, str] = {}
        self.start = self.printed = time.monotonic()
        console = Console(highlight=False)
        self.plain = not console.is_terminal or console.is_dumb_terminal
        columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=self.plain)
        self.task = self.bar.add_task("", total=steps, completed=first, text="")

    def update(self, step: int, row: dict[str, Any]) -> None:
        """Show the latest losses and the speed; a printed line has val/loss only when it is new."""
        self.latest |= {key: form.format(row[key]) for key, form in FORMATS.items() if key in row}
        text = "  ".join(self.latest[key] for key in FORMATS if key in self.latest)
        self.show(step, text, force="val/loss" in row)
        if self.plain:
            self.latest.pop("val/loss", None)

    def through(self, step: int, batches: Iterable[Windows], targets: int) -> Iterator[Windows]:
        """Yield the batches of the whole validation split, which has ``targets`` target tokens; show the
        share that is done."""
        seen = 0
        for batch in batches:
            yield batch
            seen += batch[1].size
            self.show(step, f"evaluating the whole validation split: {seen / targets:.0%}")

    def show(self, step: int, text: str, force: bool = False) -> None:
        """Show ``text`` on the live line. Without a terminal, print it if ``force``, or if the last printed
        line is older than EVERY."""
        self.bar.update(self.task, completed=step, text=text)
        now = time.monotonic()
        if self.plain and (force or now - self.printed > EVERY):
            pace = (now - self.start) / max(1, step - self.first)  # seconds per step
            eta = f"  eta {duration(pace * (self.steps - step))}" if self.first < step < self.steps else ""
            self.printed = now
            print(f"step {step}/{self.steps}  {text}{eta}", flush=True)
