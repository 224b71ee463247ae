"""Draw the batches of a run's training steps and of its evaluations; each rank draws its share of a batch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from cli.schema import RunConfig
from data import windows
from data.prepared import Prepared
from data.windows import Batch
from model.seeds import seed_for
from training.ddp import Ranks
from training.device import Compute


@dataclass(frozen=True)
class MicroBatch:
    """This rank's share of a micro-batch.

    Attributes:
        x, y: tokens and the tokens that follow them, (rows, T) int64, on the device.
        dropout_seed: seeds torch's random numbers before the forward, and so the dropout masks.
        is_last: whether the step has no further micro-batch.
    """

    x: Tensor
    y: Tensor
    dropout_seed: int
    is_last: bool


class Batches:
    """Draws batches that depend on the seed and the step only, not on what was drawn before.

    Attributes:
        micro_rows: rows of a micro-batch, all ranks together.
        evaluation_rows: rows that a rank evaluates at once.
        fixed_targets, val_targets: target tokens of ``fixed_windows``, and of the whole validation split.
        has_partial_micro_batch: whether the last of ``fixed_windows`` do not fill a micro-batch.
    """

    def __init__(self, config: RunConfig, tokens: Prepared, compute: Compute, ranks: Ranks) -> None:
        self.tokens, self.compute, self.ranks = tokens, compute, ranks
        self.seed, self.settings, self.block_size = config.seed, config.train, config.model.block_size
        self.micro_rows = config.train.batch_size // config.train.grad_accum
        max_rows = compute.evaluation_rows(self.block_size, tokens.tokenizer.vocab_size)
        self.val_targets = len(tokens.val) - 1
        self.fixed_targets = (
            min(config.train.eval_windows, self.val_targets // self.block_size) * self.block_size
        )
        self.has_partial_micro_batch = self.fixed_targets // self.block_size % self.micro_rows > 0
        # 8 times a micro-batch's rows: without gradients a row takes less memory
        self.evaluation_rows = min(max_rows, 8 * self.micro_rows // ranks.count)

    def micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """Yield the batch of a step in ``grad_accum`` micro-batches."""
        rows, n_micro = self.settings.batch_size, self.settings.grad_accum
        seed = seed_for(self.seed, "data", step)
        for micro in range(n_micro):
            share = self.ranks.share(self.micro_rows, start=micro * self.micro_rows)
            batch = windows.training_batch(self.tokens.train, self.block_size, rows, seed, share)
            share_number = micro * self.ranks.count + self.ranks.rank
            dropout_seed = seed_for(self.seed, "dropout", step, share_number)
            x, y = map(self.compute.tensor, batch)
            yield MicroBatch(x, y, dropout_seed, is_last=micro == n_micro - 1)

    def first_micro_batch(self, step: int) -> MicroBatch:
        """Return the first micro-batch of a step."""
        return next(self.micro_batches(step))

    def fixed_windows(self, rows: int | None = None) -> Iterator[Batch]:
        """Yield the windows of the validation split that every evaluation uses, ``rows`` at a time."""
        rows = rows or self.evaluation_rows
        return windows.fixed_windows(self.tokens.val, self.block_size, self.settings.eval_windows, rows)

    def micro_windows(self) -> Iterator[Batch]:
        """Yield the fixed windows in full micro-batches of all ranks; none if they do not fill one."""
        return (batch for batch in self.fixed_windows(self.micro_rows) if len(batch[0]) == self.micro_rows)

    def whole_split(self) -> Iterator[Batch]:
        """Yield the whole validation split, which has ``val_targets`` target tokens."""
        return windows.whole_split(self.tokens.val, self.block_size, self.evaluation_rows)

    def shorter_window(self) -> list[Batch]:
        """Return the last window of ``whole_split`` if it is shorter than the others, else []."""
        is_shorter = self.val_targets % self.block_size > 0
        return [windows.rest_of(self.tokens.val, self.block_size)] if is_shorter else []

    def middle(self) -> tuple[int, list[Batch]]:
        """Return how many batches of ``whole_split`` lie in the first half of the split; and the batch that
        spans the middle, split in two, or []."""
        rows, size = self.evaluation_rows, self.block_size
        middle = math.ceil(self.val_targets / size) // 2  # windows in the first half
        before = middle // rows  # full batches in it
        # the windows of the next batch; the split's last window, if it is shorter, is a batch of its own
        first, last = before * rows, min((before + 1) * rows, self.val_targets // size)
        if not first < middle < last:  # no batch spans the middle
            return math.ceil(middle / rows), []
        parts = (first, middle), (middle, last)
        return before, [windows.consecutive(self.tokens.val, size, *part) for part in parts]
