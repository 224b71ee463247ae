"""Show the progress of a run: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from system.terminal import announced, duration

if TYPE_CHECKING:
    from data.windows import Batch


FORMATS = {"train/loss": "loss {:.3f}", "val/loss": "val {:.3f}", "train/tokens_per_s": "{:,.0f} tokens/s"}
SOON = 0.5  # seconds; news that is older is shown with its age, and no line follows an evaluation's so soon


class ProgressLine:
    """A live line on a terminal; elsewhere plain lines: for each evaluation, and at least every two seconds,
    however long a step takes."""

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps = first, steps  # the first step of this process, and the last of the run
        self.latest: dict[str, Any] = {}
        self.evaluated = first  # the step of the latest val/loss
        self.start = self.printed = time.monotonic()
        self.shown = (first, "begun", self.start)  # the latest step and text, and since when
        self.bar = None
        if sys.stdout.isatty():
            self.bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[metrics]}"),
                TimeElapsedColumn(),
                TextColumn("eta"),
                TimeRemainingColumn(),
                console=Console(highlight=False),
            )
            self.task = self.bar.add_task("", total=steps, completed=first, metrics="")
        self.display = self.bar or announced(self.next_line)

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.display.__exit__(*error)

    def update(self, step: int, row: dict[str, Any]) -> None:
        """Show the latest value of each metric; ``row`` may lack some metrics."""
        self.latest |= row
        texts = {key: form.format(self.latest[key]) for key, form in FORMATS.items() if key in self.latest}
        if "val/loss" in row:
            self.evaluated = step
        elif "val/loss" in texts:
            texts["val/loss"] += f" (step {self.evaluated})"
        eta = ""
        if self.first < step < self.steps and not self.bar:  # the live line shows its own ETA
            pace = (time.monotonic() - self.start) / (step - self.first)  # seconds per step
            eta = f"  eta {duration(pace * (self.steps - step))}"
        self.show(step, "  ".join(texts.values()) + eta, force="val/loss" in row)

    def through(self, step: int, batches: "Iterable[Batch]", targets: int, what: str) -> "Iterator[Batch]":
        """Yield the batches of an evaluation, which have ``targets`` target tokens in all; show ``what`` and
        the share that is done."""
        seen, (_, earlier_text, _) = 0, self.shown
        self.show(step, f"{what}: 0%")
        for batch in batches:
            yield batch
            seen += batch[1].size
            self.show(step, f"{what}: {seen / targets:.0%}")
        self.show(step, earlier_text)

    def announced(self, text: str) -> AbstractContextManager[None]:
        """Return a context manager around what may take long; without a live line, it says so."""
        return nullcontext() if self.bar else announced(text)

    def show(self, step: int, text: str, force: bool = False) -> None:
        """Show ``text`` on the live line, or on the next plain line, which is printed at once if ``force`` is
        set."""
        self.shown = step, text, time.monotonic()
        if self.bar:
            self.bar.update(self.task, completed=step, metrics=text)
        elif force:
            self.printed = time.monotonic()
            print(self.plain_line(), flush=True)

    def plain_line(self) -> str:
        step, text, since = self.shown
        seconds = time.monotonic() - since
        age = f"  ({duration(seconds)} ago)" if seconds > SOON else ""
        return f"step {step}/{self.steps}  {text}{age}"

    def next_line(self) -> str:
        """Return the plain line, or "" if it would only repeat the one just printed."""
        return self.plain_line() if time.monotonic() - self.printed > SOON else ""
