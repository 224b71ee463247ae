"""Cut windows of tokens, and make batches of them, for training and evaluation.

A window has inputs x and targets y: the target of each input is the next token. Each rank draws its share of
a training batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cli.schema import RunConfig
from data.prepared import Prepared
from data.token_files import Tokens
from model.seeds import seed_for
from training.ddp import Ranks
from training.device import Compute

Windows = tuple[NDArray[np.int64], NDArray[np.int64]]  # x and y, each (rows, T), not on the device yet


def windows(tokens: Tokens, starts: NDArray[np.int64], length: int) -> Windows:
    """Return the windows of ``length`` tokens that begin at ``starts``."""
    x_and_next = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return x_and_next[:, :-1], x_and_next[:, 1:]


def training_batch(
    tokens: Tokens, block_size: int, rows: int, seed: int, part: slice = slice(None)
) -> Windows:
    """Draw ``rows`` windows with random starts, with replacement, and return the slice ``part`` of them. The
    windows depend on ``seed`` only."""
    starts = np.random.Generator(np.random.PCG64(seed)).integers(len(tokens) - block_size, size=rows)
    return windows(tokens, starts[part], block_size)


def fixed_windows(tokens: Tokens, block_size: int, count: int, rows: int) -> Iterator[Windows]:
    """Yield at most ``count`` windows, ``rows`` at a time: always the same, spread evenly over the split."""
    count = min(count, (len(tokens) - 1) // block_size)
    starts = np.linspace(0, len(tokens) - 1 - block_size, count).astype(np.int64)
    for some_starts in np.split(starts, range(rows, count, rows)):
        yield windows(tokens, some_starts, block_size)


@dataclass(frozen=True)
class MicroBatch:
    """This rank's share of a micro-batch.

    Attributes:
        x, y: tokens and the tokens that follow them, (rows, T) int64, on the device.
        dropout_seed: seeds torch's random numbers before the forward, and so the dropout masks.
        is_last: whether this is the step's last micro-batch.
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
        n_fixed: how many windows ``fixed_windows`` has.
        val_targets: target tokens of the whole validation split.
    """

    def __init__(self, config: RunConfig, tokens: Prepared, compute: Compute, ranks: Ranks) -> None:
        self.tokens, self.compute, self.ranks = tokens, compute, ranks
        self.seed, self.settings, self.block_size = config.seed, config.train, config.model.block_size
        self.micro_rows = config.train.batch_size // config.train.grad_accum
        self.val_targets = len(tokens.val) - 1
        self.n_fixed = min(config.train.eval_windows, self.val_targets // self.block_size)
        max_rows = compute.evaluation_rows(self.block_size, tokens.tokenizer.vocab_size)
        # 8 times a micro-batch's rows: without gradients a row takes less memory
        self.evaluation_rows = min(max_rows, 8 * self.micro_rows // ranks.count)

    def micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """Yield the batch of a step in ``grad_accum`` micro-batches."""
        rows, n_micro = self.settings.batch_size, self.settings.grad_accum
        seed = seed_for(self.seed, "data", step)
        for micro in range(n_micro):
            share = self.ranks.share(self.micro_rows, start=micro * self.micro_rows)
            batch = training_batch(self.tokens.train, self.block_size, rows, seed, share)
            share_number = micro * self.ranks.count + self.ranks.rank
            dropout_seed = seed_for(self.seed, "dropout", step, share_number)
            x, y = map(self.compute.tensor, batch)
            yield MicroBatch(x, y, dropout_seed, is_last=micro == n_micro - 1)

    def first_micro_batch(self, step: int) -> MicroBatch:
        return next(self.micro_batches(step))

    def fixed_windows(self, rows: int | None = None) -> Iterator[Windows]:
        """Yield the windows of the validation split that every evaluation uses, ``rows`` at a time."""
        rows = rows or self.evaluation_rows
        return fixed_windows(self.tokens.val, self.block_size, self.settings.eval_windows, rows)

    def micro_windows(self) -> Iterator[Windows]:
        """Yield the fixed windows in micro-batches of all ranks, without a last one that is not full."""
        return (batch for batch in self.fixed_windows(self.micro_rows) if len(batch[0]) == self.micro_rows)

    def whole_split(self) -> Iterator[Windows]:
        """Yield the whole validation split in consecutive windows: each token but the first is a target
        exactly once. The last window is shorter if block_size does not divide ``val_targets``."""
        count = self.val_targets // self.block_size
        for first in range(0, count, self.evaluation_rows):
            yield self.consecutive(first, min(first + self.evaluation_rows, count))
        yield from self.shorter_window()

    def shorter_window(self) -> list[Windows]:
        """Return the last window of ``whole_split`` if it is shorter than the others, else []."""
        count, rest = divmod(self.val_targets, self.block_size)
        return [windows(self.tokens.val, np.array([count * self.block_size]), rest)] if rest else []

    def consecutive(self, first: int, last: int) -> Windows:
        """Return the windows of ``whole_split`` from number ``first`` up to, not including, ``last``."""
        return windows(self.tokens.val, np.arange(first, last) * self.block_size, self.block_size)

    def middle(self) -> tuple[int, list[Windows]]:
        """Return how many batches of ``whole_split`` lie in the first half of the split. Also return the two
        parts of the batch that spans the middle, or [] if no batch does."""
        rows, size = self.evaluation_rows, self.block_size
        middle = math.ceil(self.val_targets / size) // 2  # windows in the first half
        before = middle // rows  # full batches in it
        # the windows of the next batch; the split's last window, if it is shorter, is a batch of its own
        first, last = before * rows, min((before + 1) * rows, self.val_targets // size)
        if not first < middle < last:  # no batch spans the middle
            return math.ceil(middle / rows), []
        return before, [self.consecutive(first, middle), self.consecutive(middle, last)]
