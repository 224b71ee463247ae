"""Signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, a cluster's warning.

The program exits with status 128 + n, as in a shell, and a sweep exits with it. A loop that must not be
interrupted in the middle of a step runs inside ``deferred`` and checks for the signal between steps. The
previous handlers are restored.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from system.errors import LostRankError
from system.os_compat import SIGNALS

T = TypeVar("T")


class Interrupted(SystemExit):
    """A signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.signal = signal.Signals(number).name

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        """Pickle the signal's number: a launcher's worker sends it to the launching process."""
        return Interrupted, (self.number,)


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[dict[int, Any]]:
    """Context manager: call ``handler(number, frame)`` at a signal. Yields the previous handlers. No effect
    outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    previous = {int(number): signal.signal(number, handler) or signal.SIG_DFL for number in SIGNALS}
    try:
        yield previous
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


received: list[int] = []  # the signals by which this program ends


def end(number: int, frame: Any = None) -> None:
    """Handle a signal to a program: end it at once.

    Torchrun sends one to every rank as soon as it has seen that another ended. This rank may be about to end
    for the same reason; then that is the cause, and still to be printed.
    """
    received.append(number)
    error = sys.exception()
    raise Interrupted(number) from error if isinstance(error, LostRankError) else None


def check() -> None:
    """Raise Interrupted if ``end`` has raised it before: code that it passed through may have raised another
    error in its place, or lost it where Python ignores errors, as in __del__."""
    if received:
        raise Interrupted(received[0])


@contextmanager
def ending() -> Iterator[None]:
    """Context manager around a program: a signal ends it at once."""
    with handled(end):
        try:
            yield
        except Exception:
            check()
            raise
        else:
            check()
        finally:
            received.clear()


class Pending:
    """A signal that has been received and not acted on. ``agreed`` maps the signal of this process, 0 for
    none, to the one that all ranks act on."""

    number: int | None = None
    since = 0.0

    def __init__(self, agreed: Callable[[int], int]) -> None:
        self.agreed = agreed

    def check(self) -> None:
        """Raise Interrupted if a signal has been received."""
        if number := self.agreed(self.number or 0):
            end(number)

    def watching(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, with a check before each."""
        for item in items:
            self.check()
            yield item


PATIENCE = 1.0  # seconds in which a second signal counts as the same one: launchers may send it twice


@contextmanager
def deferred(agreed: Callable[[int], int] = int) -> Iterator[Pending]:
    """Context manager: a signal is only recorded, in the Pending that this yields, which is checked at the
    end, too. A second one, after PATIENCE, goes to the previous handler at once."""
    check()
    pending = Pending(agreed)

    def record(number: int, frame: Any) -> None:
        if pending.number is None:
            pending.number, pending.since = number, time.monotonic()
        elif time.monotonic() - pending.since > PATIENCE:
            signal.signal(number, previous[number])
            signal.raise_signal(number)

    with handled(record) as previous:
        try:
            yield pending
        except Exception as error:
            if pending.number is not None:
                raise Interrupted(pending.number) from error
            raise
    pending.check()
