"""When a run has diverged: a loss or gradient is not finite, or it does not learn and will not.

A model that ignores its context can do no better than to guess each token by its frequency. On given targets
that costs at least the entropy of their frequencies (Gibbs' inequality), so a loss at or above it is that of
a model that has learned nothing, or has lost it, as a collapsed one has.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from data.windows import Batch

FALL = 1e-3  # of the loss: less is noise
DECISIVE = ("val/loss", "val/full_loss")


def guessing(some: Iterable[Batch]) -> float:
    """The lowest loss that one guess for all the targets of these batches can have, in nats per token."""
    counts = np.zeros(0, np.int64)
    for _, y in some:
        more = np.bincount(y.ravel(), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    p = counts[counts > 0] / counts.sum()
    return -float(p @ np.log(p))


class Divergence:
    """Looks at the rows of a run as they come.

    Args:
        unlearned: a loss that shows nothing learned: what ``guessing`` says of the evaluated targets.
        warm: the first step after the warm-up.
        last: the last step.
        patience: so many evaluations in a row, after the warm-up, that show nothing learned are too many: at
            the end, and before it if the loss does not fall, either, by FALL over them. 0 = never.
        origin: a step, and whether its evaluation is meant -> where numbers are not finite, in words.
        logged: rows of before, where the run goes on.
    """

    def __init__(
        self,
        unlearned: float,
        warm: int,
        last: int,
        patience: int,
        origin: Callable[[int, bool], str],
        logged: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.unlearned, self.warm, self.last, self.patience = unlearned, warm, last, patience
        self.origin = origin
        self.losses: list[float] = []  # of every evaluation
        self.in_a_row = 0  # evaluations that show nothing learned
        for row in logged:
            self.reason(row)

    def reason(self, row: dict[str, Any]) -> str | None:
        """Why the run has diverged by this row, or None. What only watches need not be finite."""
        for key in DECISIVE:
            if not math.isfinite(row.get(key, 0.0)):
                return f"{key} is {row[key]}, {self.origin(row['step'], True)}"
        if "val/loss" not in row:
            return None
        loss = row["val/loss"]
        self.losses.append(loss)
        self.in_a_row = self.in_a_row + 1 if loss >= self.unlearned and row["step"] >= self.warm else 0
        if not self.patience or self.in_a_row < self.patience:
            return None
        before = self.losses[-self.patience - 1 :][0]
        if loss < (1 - FALL) * before and row["step"] < self.last:
            return None
        guess = f"{self.unlearned:.4f}, that of guessing by frequency"
        return f"val/loss is not below {guess}, in {self.in_a_row} evaluations in a row"

    def missed(self, step: int, updates: int) -> str | None:
        """Why the run has diverged where so many of the updates before ``step`` were not made, or None."""
        if not updates:
            return None
        step -= updates
        return f"loss or gradient of step {step:,} is not finite, {self.origin(step, False)}"
