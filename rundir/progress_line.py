"""The progress of a run: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
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

if TYPE_CHECKING:
    from data.windows import Batch


FORMS = {"train/loss": "loss {:.3f}", "val/loss": "val {:.3f}", "train/tokens_per_s": "{:,.0f} tokens/s"}


class ProgressLine:
    """A live line on a terminal; plain lines elsewhere, more rarely the longer the run takes."""

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps = first, steps  # the first step of this process, and the last of the run
        self.latest: dict[str, Any] = {}
        self.start = self.printed = time.monotonic()
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

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, step: int, row: dict[str, Any]) -> None:
        """Show the latest value of each metric; ``row`` may lack some."""
        self.latest |= row
        text = "  ".join(form.format(self.latest[key]) for key, form in FORMS.items() if key in self.latest)
        eta = ""
        if self.first < step < self.steps and not self.bar:  # the live line has its own
            pace = (time.monotonic() - self.start) / (step - self.first)  # seconds a step
            eta = f"  eta {pace * (self.steps - step):.0f} s"
        self.say(step, text + eta, now="val/loss" in row)

    def through(self, step: int, batches: "Iterable[Batch]", targets: int) -> "Iterator[Batch]":
        """Yield the batches of a long evaluation of ``targets`` target tokens, and show its progress."""
        seen = 0
        for batch in batches:
            yield batch
            seen += batch[1].size
            self.say(step, f"the whole validation split: {seen / targets:.0%}")

    def say(self, step: int, text: str, now: bool = False) -> None:
        """Show ``text``; as a plain line only if one is due, or ``now``."""
        clock = time.monotonic()
        if self.bar:
            self.bar.update(self.task, completed=step, metrics=text)
        elif now or clock - self.printed >= max(1.5, 0.05 * (clock - self.start)):
            print(f"step {step}/{self.steps}  {text}", flush=True)
            self.printed = clock
