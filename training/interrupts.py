"""Signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, a cluster's warning.

They end it with status 128 + n, as a shell has it, and a sweep with it. A loop that must not be torn runs
inside ``deferred`` and looks at the signal where its state is whole. The handlers found are put back.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
T = TypeVar("T")


class Interrupted(SystemExit):
    """A signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number).name


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[dict[int, Any]]:
    """Call ``handler(number, frame)`` at a signal. Yields what was found. Only a main thread can do this; in
    another one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    found: dict[int, Any] = {number: signal.signal(number, handler) or signal.SIG_DFL for number in SIGNALS}
    try:
        yield found
    finally:
        for number, before in found.items():
            signal.signal(number, before)


def end(number: int, frame: Any) -> None:
    """The handler of a program: end it where it is."""
    raise Interrupted(number)


class Pending:
    """Whether a signal has come."""

    number: int | None = None

    def check(self) -> None:
        """Raises Interrupted where one has."""
        if self.number is not None:
            raise Interrupted(self.number)

    def watching(self, some: Iterable[T]) -> Iterator[T]:
        """The same items, with a check before each."""
        for item in some:
            self.check()
            yield item


@contextmanager
def deferred() -> Iterator[Pending]:
    """Inside, a signal is only noted. The same one again does what it did outside: it does not wait."""
    pending = Pending()

    def note(number: int, frame: Any) -> None:
        pending.number = number
        signal.signal(number, found[number])

    with handled(note) as found:
        yield pending
    pending.check()  # it came too late for the loop
