"""Decide what is due at a step of a run, and measure the seconds of training apart from all other seconds."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cli.schema import StatsConfig, TrainConfig

DENSE_START = (16, 256, 4096)  # a run changes most at the beginning


def is_due(step: int, every: int, dense_start: bool = False) -> bool:
    """Return whether something done every ``every`` steps (0: never) is due at ``step``; with a dense start
    also at those steps of DENSE_START that are less than ``every``."""
    if every == 0:
        return False
    return step % every == 0 or (dense_start and step < every and step in DENSE_START)


@dataclass(frozen=True)
class Due:
    """The things that are due at a step. The last step makes no update."""

    evaluation: bool
    checkpoint: bool
    log: bool
    statistics: bool
    histograms: bool


def due_at(step: int, train: TrainConfig, stats: StatsConfig) -> Due:
    is_last = step == train.steps
    evaluation = is_last or is_due(step, train.eval_every)
    return Due(
        evaluation=evaluation,
        checkpoint=is_last or (step > 0 and is_due(step, train.checkpoint_every)),
        log=evaluation or is_due(step, train.log_every),  # both losses of a step are in one row
        statistics=is_due(step, stats.every, dense_start=True) or (is_last and stats.every > 0),
        histograms=is_due(step, stats.histograms_every) or (is_last and stats.histograms_every > 0),
    )


class Clock:
    """Measures a run's seconds, from the creation of the clock on.

    Args:
        synchronize: waits until the device has done its work.
        earlier: seconds that the run took in processes before this one.

    Attributes:
        spent: seconds that were not spent on training, by purpose.
    """

    def __init__(self, synchronize: Callable[[], None], earlier: float = 0.0) -> None:
        self.synchronize, self.earlier = synchronize, earlier
        self.start = time.perf_counter()
        self.spent: dict[str, float] = defaultdict(float)
        self.mark = 0.0  # seconds of training at the last lap

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return self.earlier + time.perf_counter() - self.start

    def training(self) -> float:
        """Return the seconds that this process has spent on training."""
        return time.perf_counter() - self.start - sum(self.spent.values())

    def lap(self) -> float:
        """Return the seconds spent on training since the last call."""
        previous, self.mark = self.mark, self.training()
        return self.mark - previous

    @contextmanager
    def aside(self, purpose: str) -> Iterator[None]:
        """Count the seconds of the block, until the device has done its work, as spent on ``purpose``."""
        self.synchronize()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            self.spent[purpose] += time.perf_counter() - start
