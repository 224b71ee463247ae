"""Decide whether a run has diverged (a loss or gradient is not finite) or collapsed (it has learned nothing).

A model that ignores its context can at best guess each token by its frequency. Its loss is then the entropy
of the targets' frequencies (Gibbs' inequality). If the final loss on the validation split is no better, the
run has collapsed, unless its training loss is below half of the entropy: then it learned its training text by
heart. A collapsed run is finished and its loss counts, but it is marked.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.seeds import seed_for, seed_torch
from training.batches import Batches, Windows
from training.ddp import Ranks
from training.loss import Loss, Net
from training.run_folder import Diverged

OVERFITS = 0.5  # fraction of the unigram entropy; only a tiny batch has a lower training loss by chance


def unigram_entropy(batches: Iterable[Windows]) -> float:
    """Return the entropy of the targets' frequencies, in nats per token."""
    counts = np.zeros(0, np.int64)
    for _, y in batches:
        more = np.bincount(y.ravel(), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    p = counts[counts > 0] / counts.sum()
    return -float(p @ np.log(p))


def has_collapsed(full_loss: float, train_loss: float, entropy: float) -> bool:
    return full_loss >= entropy and train_loss >= OVERFITS * entropy


class Divergence:
    """``check`` raises Diverged as soon as a loss or gradient is known not to be finite.

    Args:
        find_non_finite: (step, whether to look in its evaluation) -> text that says where numbers are not
            finite.
    """

    def __init__(self, find_non_finite: Callable[[int, bool], str]) -> None:
        self.find_non_finite = find_non_finite

    def check_updates(self, step: int, skipped: Tensor, updates: int | None = None) -> None:
        """Raise Diverged if any of the first ``updates`` updates (by default ``step``) was skipped. Waits for
        the device."""
        if count := int(skipped):
            first = (step if updates is None else updates) - count
            where = self.find_non_finite(first, False)
            raise Diverged(step, f"loss or gradient of step {first:,} is not finite, {where}")

    def check(self, step: int, row: dict[str, Any], skipped: Tensor) -> None:
        """Raise Diverged if the row logged at ``step`` shows divergence. Other metrics, such as statistics,
        may be non-finite."""
        if "train/loss" in row:  # the loss is on the host, so the device has done the step
            self.check_updates(step, skipped, updates=step + 1)
        for key in ("val/loss", "val/full_loss"):
            if not math.isfinite(row.get(key, 0.0)):
                raise Diverged(step, f"{key} is {row[key]}, {self.find_non_finite(step, True)}")


def find_non_finite(
    model: nn.Module, batches: Batches, loss: Loss, ranks: Ranks, step: int, evaluation: bool
) -> str:
    """Return the end of a message, such as ``first in <place>``: where numbers first become non-finite, in a
    step whose update was skipped or, if ``evaluation``, in the evaluation at that step."""

    from probe.non_finite import first_non_finite  # here: few runs need it

    losses: Iterable[tuple[int, Callable[[Net], Tensor]]]  # for each batch: its seed, and net -> loss
    if evaluation:
        windows = enumerate(batches.fixed_windows())
        losses = ((seed_for(0, "evaluation", i), partial(loss.of_batch, batch=batch)) for i, batch in windows)
    else:  # with training's dropout masks, unless a GPU ran compiled code
        micro_batches = batches.micro_batches(step)
        losses = ((batch.dropout_seed, partial(loss, x=batch.x, y=batch.y)) for batch in micro_batches)
    model.train(not evaluation)
    with torch.set_grad_enabled(not evaluation):
        for seed, loss_of in losses:
            seed_torch(seed)
            if place := first_non_finite(model, loss_of, ranks.first_found):
                return f"first in {place}"
    return "but no single layer shows it"
