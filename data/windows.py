"""Cut windows of tokens: inputs x and targets y (the next token of each), both int64 (rows, block_size)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data.external import Tokens

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def windows(tokens: Tokens, starts: NDArray[np.int64], length: int) -> Batch:
    """Return x and y of the windows of ``length`` tokens that begin at ``starts``."""
    x_and_next = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return x_and_next[:, :-1], x_and_next[:, 1:]


def training_batch(tokens: Tokens, block_size: int, rows: int, seed: int, part: slice = slice(None)) -> Batch:
    """Draw ``rows`` windows with random starts, with replacement, and return the slice ``part`` of the batch.
    The batch depends on ``seed`` only."""
    starts = np.random.Generator(np.random.PCG64(seed)).integers(len(tokens) - block_size, size=rows)
    return windows(tokens, starts[part], block_size)


def fixed_windows(tokens: Tokens, block_size: int, count: int, rows: int) -> Iterator[Batch]:
    """Yield at most ``count`` windows spread evenly over the split, always the same, ``rows`` at a time."""
    count = min(count, (len(tokens) - 1) // block_size)
    starts = np.linspace(0, len(tokens) - 1 - block_size, count).astype(np.int64)
    for batch_starts in np.split(starts, range(rows, count, rows)):
        yield windows(tokens, batch_starts, block_size)


def whole_split(tokens: Tokens, block_size: int, rows: int) -> Iterator[Batch]:
    """Yield the whole split in consecutive windows: each token but the first is a target exactly once.

    The last window is shorter if block_size does not divide the split.
    """
    count, rest = divmod(len(tokens) - 1, block_size)
    for first in range(0, count, rows):
        yield consecutive(tokens, block_size, first, min(first + rows, count))
    if rest:
        yield rest_of(tokens, block_size)


def rest_of(tokens: Tokens, block_size: int) -> Batch:
    """Return the window after all full ones, which has at least one target."""
    count, rest = divmod(len(tokens) - 1, block_size)
    return windows(tokens, np.array([count * block_size]), rest)


def consecutive(tokens: Tokens, block_size: int, first: int, last: int) -> Batch:
    """Return the consecutive windows from number ``first`` up to, not including, number ``last``."""
    return windows(tokens, np.arange(first, last) * block_size, block_size)
