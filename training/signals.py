"""The signals at which a run saves and ends: Ctrl-C, kill, a closed terminal, a cluster's warnings."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
PATIENCE = 1.0  # seconds in which a second signal is ignored: launchers may send one twice


class Interrupted(SystemExit):
    """A signal asked the program to end, with exit status 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number, self.signal_name = number, signal.Signals(number).name


class Stop:
    """Inside ``with``, a signal only sets a flag, which ``check`` reads between two steps. A second signal,
    more than PATIENCE later, has its usual effect at once. Ignored signals, such as SIGHUP under nohup, stay
    ignored.

    Args:
        agreed: this process's signal -> the signal on which all ranks act; 0 means no signal.
    """

    def __init__(self, agreed: Callable[[int], int] = lambda number: number) -> None:
        self.agreed, self.number, self.since = agreed, 0, 0.0

    def __enter__(self) -> Self:
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self.previous = {number: signal.signal(number, self.record) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def record(self, number: int, frame: object) -> None:
        if not self.number:
            self.number, self.since = number, time.monotonic()
        elif time.monotonic() - self.since > PATIENCE:
            signal.signal(number, self.previous[number])
            signal.raise_signal(number)

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if number := self.agreed(self.number):
            raise Interrupted(number)

    def watching(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; call ``check`` before each."""
        for item in items:
            self.check()
            yield item
