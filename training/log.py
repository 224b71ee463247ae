"""Log a run in metrics.jsonl, in status.json, and as a line on the terminal."""

import math
from typing import Any, Self

from torch import Tensor

from diagnostics.statistics import on_host
from rundir.folder import Run
from rundir.metrics import Metrics, best_of, losses, rows_before, write_rows
from rundir.progress_line import ProgressLine
from training.device import Compute
from training.parallel.ranks import Ranks
from training.timing import Clock


class RunLog:
    """Writes the rows of a run from step ``start`` on, inside ``with`` and after ``begin``.

    Attributes:
        earlier: the rows before ``start`` that have a validation loss, and the last row before ``start``.
        best: step and val/loss of the lowest val/loss so far, except at step 0; None before there is one.
        clock: measures the run's seconds from ``with`` on.
        last_step: the step after the last update.
    """

    def __init__(self, run: Run, compute: Compute, ranks: Ranks, start: int) -> None:
        train = run.config.train
        self.run, self.compute, self.last_step = run, compute, train.steps
        self.tokens_per_step = train.batch_size * run.config.model.block_size
        self.rows = rows_before(run.metrics, start) if ranks.first else []
        self.earlier = ranks.broadcast(losses(self.rows))
        self.best = best_of(self.earlier)
        self.timed_from = start  # first step that the next train/tokens_per_s counts
        self.metrics = Metrics(run.metrics)
        self.progress = ProgressLine(start, train.steps)

    def begin(self) -> None:
        """Drop the rows from ``start`` on, which earlier processes wrote."""
        if self.run.writes:
            write_rows(self.run.metrics, self.rows)
        self.rows = []  # a row with histograms is large

    def __enter__(self) -> Self:
        self.clock = Clock(self.compute.synchronize, self.earlier[-1]["seconds"] if self.earlier else 0.0)
        self.metrics.__enter__()
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.__exit__(*error)
        self.metrics.__exit__(*error)

    def update_best(self, step: int, row: dict[str, Any]) -> bool:
        """Make ``row`` the ``best`` if it has the lowest val/loss so far. Returns True in that case."""
        loss, lowest = row.get("val/loss", math.inf), self.best["val/loss"] if self.best else math.inf
        if (step == 0 and self.last_step > 0) or not loss < lowest:
            return False
        self.best = {"step": step, "val/loss": loss}
        return True

    def write(self, step: int, row: dict[str, Any]) -> dict[str, Any]:
        """Write the row that was measured at ``step``, unless it is empty. Returns the row as plain numbers.

        Args:
            row: numbers, and tensors on the device, which are copied to the host at once.
        """
        if not row:
            self.progress.update(step, {})
            return row
        row |= on_host({name: value for name, value in row.items() if isinstance(value, Tensor)})
        if "train/loss" in row:
            tokens = (step + 1 - self.timed_from) * self.tokens_per_step
            row["train/tokens_per_s"] = tokens / self.clock.lap()
            self.timed_from = step + 1
        tokens = step * self.tokens_per_step
        self.metrics.write({"step": step, "tokens": tokens, "seconds": self.clock.seconds()} | row)
        self.progress.update(step, row)
        final, peak = row.get("val/full_loss"), self.compute.peak_memory()
        self.run.write_status(at_once=False, step=step, best=self.best, final=final, peak_memory=peak)
        return row
