"""When something is due, and where a run's seconds go: to training, or to looking at it."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def is_due(step: int, every: int, dense_start: bool = False) -> bool:
    """Whether something done every so many steps is done at ``step``; every 0 is never. With a dense start
    also at 1, 2, 4, 8, …, as a run changes most in the beginning."""
    if every == 0:
        return False
    return step % every == 0 or (dense_start and step < every and step & (step - 1) == 0)


class Clock:
    """Starts when it is made.

    Args:
        synchronize: waits until the device has done its work.
        earlier: seconds that the run took in processes before this one.
    """

    def __init__(self, synchronize: Callable[[], None], earlier: float = 0.0) -> None:
        self.synchronize, self.earlier = synchronize, earlier
        self.start = time.perf_counter()
        self.spent: dict[str, float] = defaultdict(
            float
        )  # seconds aside from training, by what they were spent on
        self.lapped = 0.0

    def seconds(self) -> float:
        """Since the run began."""
        return self.earlier + time.perf_counter() - self.start

    def training(self) -> float:
        """Seconds that this process has spent on training."""
        return time.perf_counter() - self.start - sum(self.spent.values())

    def lap(self) -> float:
        """Seconds spent on training since the last call."""
        before, self.lapped = self.lapped, self.training()
        return self.lapped - before

    @contextmanager
    def aside(self, what: str) -> Iterator[None]:
        """The seconds in here are spent on ``what``. They end when the device is done."""
        self.synchronize()
        tick = time.perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            self.spent[what] += time.perf_counter() - tick
