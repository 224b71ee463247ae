"""Signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal was closed), and SIGUSR1,
a cluster's warning. A signal that is ignored, as under nohup, stays ignored.

A program that signal n ends exits with status 128 + n, as in a shell; so does a sweep. A loop that must not
be interrupted in the middle of a step runs inside ``deferred`` and checks for signals between steps. Every
context manager restores the previous handlers.
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
        self.signal_name = signal.Signals(number).name

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        """Pickle the signal's number, as a launcher's workers send this exception to its process."""
        return Interrupted, (self.number,)


@contextmanager
def handled(handler: Callable[[int, Any], None] | signal.Handlers) -> Iterator[dict[int, Any]]:
    """Context manager: call ``handler(number, frame)`` at a signal, or do what SIG_DFL does. Yields the
    previous handlers (those not set from Python as SIG_DFL). Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {int(number): signal.signal(number, handler) or signal.SIG_DFL for number in heeded}
    try:
        yield previous
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


received: list[int] = []  # numbers of the signals that were raised as Interrupted


def end(number: int, frame: Any = None) -> None:
    """Handle a signal: raise Interrupted.

    As soon as one rank has ended, torchrun signals all others. If this rank is just handling LostRankError,
    that error is the cause of Interrupted, so that it is still printed.
    """
    received.append(number)
    error = sys.exception()
    raise Interrupted(number) from error if isinstance(error, LostRankError) else None


def check() -> None:
    """Raise Interrupted if ``end`` has raised it before: other code may have replaced it by another error, or
    Python may have ignored it, as Python ignores errors in __del__."""
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
    """The signal, if one was received, on which ``check`` acts. ``agreed`` maps the signal of this process to
    the signal on which all ranks act; 0 stands for no signal."""

    number: int | None = None
    since = 0.0
    forced = False  # whether there was a second signal, which ends the program at once

    def __init__(self, agreed: Callable[[int], int]) -> None:
        self.agreed = agreed

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if number := self.agreed(self.number or 0):
            end(number)

    def watching(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; call ``check`` before each."""
        for item in items:
            self.check()
            yield item


PATIENCE = 1.0  # seconds in which a second signal is ignored: launchers may send the same signal twice


@contextmanager
def deferred(agreed: Callable[[int], int] = lambda number: number) -> Iterator[Pending]:
    """Context manager: yield a Pending that records a signal; ``check`` acts on it, and is also called at the
    end of the block. A second signal, after PATIENCE, goes to the previous handler at once.

    Raises:
        Interrupted: a signal was received and ``check`` was not called after it. If the block ended with an
            error, that error is the cause.
    """
    check()
    pending = Pending(agreed)

    def record(number: int, frame: Any) -> None:
        if pending.number is None:
            pending.number, pending.since = number, time.monotonic()
        elif time.monotonic() - pending.since > PATIENCE:
            pending.forced = True
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
