"""When a run has diverged: a loss or gradient is non-finite, or the model does not learn and will not.

A model that ignores its context can do no better than to guess each token by its frequency. On given targets
that costs at least the entropy of their frequencies (Gibbs' inequality), so a loss at or above it is that of
a model that has learned nothing, or has lost it, as a collapsed one has.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cli.schema import TrainConfig
from data.windows import Batch
from diagnostics.non_finite import first_non_finite
from rundir.folder import Diverged
from rundir.run_files import DECISIVE
from training.batches import Batches
from training.loss import Loss, Net
from training.parallel.ranks import Ranks
from training.parallel.strategies import Strategy

FALL = 1e-3  # of the loss: less is noise


def unigram_loss(batches: Iterable[Batch]) -> float:
    """Return the entropy of the targets' frequencies, in nats per token: the lowest loss that one guess for
    all targets of these batches can have."""
    targets = np.concatenate([y.ravel() for _, y in batches])
    counts = np.unique(targets, return_counts=True)[1]
    p = counts / counts.sum()
    return -float(p @ np.log(p))


class Divergence:
    """Watches a run for divergence.

    Args:
        train: its ``hopeless_after`` is how many consecutive evaluations since the warm-up may show nothing
            learned before the run has diverged: at the end, and before it if the loss does not fall, either,
            by FALL over them. 0 = any number.
        evaluated: the batches of an evaluation, whose ``unigram_loss`` shows nothing learned.
        warmup: steps of the warm-up.
        origin: a step, and whether its evaluation is meant -> where numbers are non-finite, in words.
        logged: rows of earlier processes, where the run resumes.
    """

    def __init__(
        self,
        train: TrainConfig,
        evaluated: Iterable[Batch],
        warmup: int,
        origin: Callable[[int, bool], str],
        logged: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.last, self.patience = train.steps, train.hopeless_after
        self.unlearned, self.warmup = unigram_loss(evaluated), warmup
        self.origin = origin
        self.losses: list[float] = []  # of every evaluation
        self.without_learning = 0  # consecutive evaluations no better than unigram guessing
        for row in logged:
            self.reason(row)

    def check_updates(self, step: int, skipped: Tensor, updates: int | None = None) -> None:
        """Raise Diverged if some of the first ``updates`` updates, by default ``step``, were skipped. Waits
        for the device."""
        if count := int(skipped):
            first = (step if updates is None else updates) - count
            where = self.origin(first, False)
            raise Diverged(step, f"loss or gradient of step {first:,} is not finite, {where}")

    def check(self, step: int, row: dict[str, Any], skipped: Tensor) -> None:
        """Raise Diverged if what was logged at ``step`` says so."""
        if "train/loss" in row:  # so the device has done the step
            self.check_updates(step, skipped, updates=step + 1)
        if reason := self.reason({"step": step} | row):
            raise Diverged(step, reason)

    def reason(self, row: dict[str, Any]) -> str | None:
        """Return why the run has diverged by this row, or None. Other metrics may be non-finite."""
        for key in DECISIVE:
            if not math.isfinite(row.get(key, 0.0)):
                return f"{key} is {row[key]}, {self.origin(row['step'], True)}"
        if "val/loss" not in row:
            return None
        loss = row["val/loss"]
        self.losses.append(loss)
        self.without_learning = (
            self.without_learning + 1 if loss >= self.unlearned and row["step"] >= self.warmup else 0
        )
        if not self.patience or self.without_learning < self.patience:
            return None
        before = self.losses[-self.patience - 1 :][0]
        if loss < (1 - FALL) * before and row["step"] < self.last:
            return None
        guess = f"{self.unlearned:.4f}, that of guessing by frequency"
        return f"val/loss is not below {guess}, in {self.without_learning} evaluations in a row"


def non_finite_origin(
    strategy: Strategy, batches: Batches, loss: Loss, ranks: Ranks, step: int, evaluation: bool
) -> str:
    """Return where the numbers of a step whose update was skipped, or of its evaluation, first are
    non-finite: ``first in <module>``."""

    def losses() -> Iterator[Callable[[Net], Tensor]]:
        """Yield the loss of each batch as a function of a net."""
        if evaluation:
            for windows in batches.fixed_windows():
                yield partial(loss.of_batch, batch=windows)
        else:
            for batch in batches.micro_batches(step):
                torch.manual_seed(batch.dropout_seed)  # as the forward of training meets it
                yield partial(loss, x=batch.x, y=batch.y)

    strategy.model.train(not evaluation)
    with strategy.full_model(), torch.set_grad_enabled(not evaluation):
        for loss_of in losses():
            if module := first_non_finite(strategy.model, loss_of, ranks.first_found):
                return f"first in {module}"
    return "but no layer by itself shows it"
