"""Signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal was closed), and SIGUSR1,
a cluster's warning. A signal that is ignored, as under nohup, stays ignored.

A program that signal n ends exits with status 128 + n, as in a shell; so does a sweep. A loop that must not
be interrupted in the middle of a step runs inside ``deferred`` and checks for signals between steps. Every
context manager restores the previous handlers.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from training import signals as of_runs
from training.signals import Interrupted

T = TypeVar("T")
SIGNALS = tuple(number for number in of_runs.SIGNALS if number != signal.SIGUSR2)  # that one is submitit's


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
    """Handle a signal: raise Interrupted."""
    received.append(number)
    raise Interrupted(number)


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
