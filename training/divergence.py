"""Decide when a run has diverged: a loss or gradient is non-finite, or the model does not learn and will not.

A model that ignores its context can do no better than to guess each token by its frequency. On given targets
such guesses cost at least the entropy of the targets' frequencies (Gibbs' inequality), so a model whose loss
is no lower predicts no better than the best such guess. If that lasts, the run is called diverged; unless its
training loss shows that it learns its training text by heart.
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
from model.seeds import seed_for, seed_torch
from rundir.folder import Diverged
from rundir.run_files import DECISIVE
from training.batches import Batches
from training.loss import Loss, Net
from training.parallel.ranks import Ranks
from training.parallel.strategies import Strategy

FALL = 1e-3  # fraction of the loss; a smaller fall is noise
OVERFITS = 0.5  # fraction of the guesses' loss; only a tiny batch has a lower training loss by chance


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
        train: a run has diverged after ``hopeless_after`` consecutive evaluations, since the warm-up, with
            nothing learned; before the last step only if the loss also fell by less than FALL over these
            evaluations. A run that overfits (OVERFITS) has learned. 0 = never.
        windows: the batches of an evaluation; their ``unigram_loss`` is the loss with nothing learned.
        warmup: steps of the warm-up.
        find_non_finite: (step, True for its evaluation) -> text that says where numbers are non-finite.
        rows: the rows that earlier processes of a resumed run logged.
    """

    def __init__(
        self,
        train: TrainConfig,
        windows: Iterable[Batch],
        warmup: int,
        find_non_finite: Callable[[int, bool], str],
        rows: Sequence[dict[str, Any]],
    ) -> None:
        self.last_step, self.patience = train.steps, train.hopeless_after
        self.unlearned, self.warmup = unigram_loss(windows), warmup
        self.find_non_finite = find_non_finite
        self.losses: list[float] = []  # of every evaluation
        self.train_loss = math.inf  # the latest
        self.without_learning = 0  # consecutive evaluations no better than unigram guessing
        for row in rows:
            self.judge_row(row)

    def check_updates(self, step: int, skipped: Tensor, updates: int | None = None) -> None:
        """Raise Diverged if any of the first ``updates`` updates (by default ``step``) was skipped. Waits for
        the device."""
        if count := int(skipped):
            first = (step if updates is None else updates) - count
            where = self.find_non_finite(first, False)
            raise Diverged(step, f"loss or gradient of step {first:,} is not finite, {where}")

    def check(self, step: int, row: dict[str, Any], skipped: Tensor) -> None:
        """Raise Diverged if the row logged at ``step`` shows divergence."""
        if "train/loss" in row:  # the loss was copied from the device, which has therefore done the step
            self.check_updates(step, skipped, updates=step + 1)
        if reason := self.judge_row({"step": step} | row):
            raise Diverged(step, reason)

    def judge_row(self, row: dict[str, Any]) -> str | None:
        """Take the row's evaluation into account, and return why the row shows divergence, or None. Metrics
        that are not DECISIVE may be non-finite."""
        for key in DECISIVE:
            if not math.isfinite(row.get(key, 0.0)):
                return f"{key} is {row[key]}, {self.find_non_finite(row['step'], True)}"
        self.train_loss = row.get("train/loss", self.train_loss)
        if "val/loss" not in row:
            return None
        loss = row["val/loss"]
        self.losses.append(loss)
        learned = loss <= self.unlearned or self.train_loss < OVERFITS * self.unlearned
        self.without_learning = 0 if learned or row["step"] < self.warmup else self.without_learning + 1
        if not self.patience or self.without_learning < self.patience or row["step"] == 0:
            return None
        earlier_loss = self.losses[-self.patience - 1 :][0]  # ``patience`` evaluations ago, or the first
        if loss < (1 - FALL) * earlier_loss and row["step"] < self.last_step:
            return None
        guess = f"{self.unlearned:.4f}, the loss of guessing by frequency"
        return f"val/loss is not below {guess}, in {self.without_learning} evaluations in a row"


def find_non_finite(
    strategy: Strategy, batches: Batches, loss: Loss, ranks: Ranks, step: int, evaluation: bool
) -> str:
    """Return the end of a message, such as ``first in <place>``: where a step whose update was skipped or,
    if ``evaluation``, the evaluation at that step first becomes non-finite."""

    def losses() -> Iterator[Callable[[Net], Tensor]]:
        """Yield the loss of each batch as a function of a net."""
        if evaluation:
            for number, window in enumerate(batches.fixed_windows()):
                seed_torch(seed_for(0, "evaluation", number))
                yield partial(loss.of_batch, batch=window)
        else:
            for batch in batches.micro_batches(step):
                seed_torch(batch.dropout_seed)  # the masks of training, unless a GPU ran compiled code
                yield partial(loss, x=batch.x, y=batch.y)

    strategy.model.train(not evaluation)
    with strategy.full_model(), torch.set_grad_enabled(not evaluation):
        for loss_of in losses():
            if place := first_non_finite(strategy.model, loss_of, ranks.first_found):
                return f"first in {place}"
    return "but no single layer shows it"
