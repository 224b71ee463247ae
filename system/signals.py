"""Signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, a cluster's warning.

They end it with status 128 + n, as a shell has it, and a sweep with it. A loop that must not be torn runs
inside ``deferred`` and looks at the signal where its state is whole. The handlers found are put back.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from system.os_compat import SIGNALS

T = TypeVar("T")


class Interrupted(SystemExit):
    """A signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.signal = signal.Signals(number).name

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        """A launcher's worker passes it to the launching process."""
        return Interrupted, (self.number,)


def current() -> dict[int, Any]:
    """The handler of each signal; the system's own where it is none of Python's."""
    return {int(number): signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call ``handler(number, frame)`` at a signal. Only a main thread can do so; another changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = current()
    for number in SIGNALS:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, found[number])


came: list[int] = []  # the signals by which this program ends


def end(number: int, frame: Any = None) -> None:
    """The handler of a program: end it where it is."""
    came.append(number)
    raise Interrupted(number)


def check() -> None:
    """Raises Interrupted where ``end`` has, whatever became of that: other code that it passes through may
    raise another error in its place, and where Python ignores errors, as in __del__, it is lost."""
    if came:
        raise Interrupted(came[0])


@contextmanager
def ending() -> Iterator[None]:
    """Inside, which is all of a program, a signal ends it where it is."""
    with handled(end):
        try:
            yield
        except Exception:
            check()
            raise
        else:
            check()
        finally:
            came.clear()


class Pending:
    """Whether a signal has come, and when.

    Args:
        agreed: the signal of this process, 0 for none -> that on which all its ranks act.
    """

    number: int | None = None
    since = 0.0

    def __init__(self, agreed: Callable[[int], int]) -> None:
        self.agreed = agreed

    def check(self) -> None:
        """Raises Interrupted where one has."""
        if number := self.agreed(self.number or 0):
            end(number)

    def watching(self, some: Iterable[T]) -> Iterator[T]:
        """The same items, with a check before each."""
        for item in some:
            self.check()
            yield item


PATIENCE = 1.0  # seconds in which another signal is taken for the same one: launchers may send it twice


@contextmanager
def deferred(agreed: Callable[[int], int] = int) -> Iterator[Pending]:
    """Inside, a signal is only noted. One that comes after PATIENCE does what it did outside, at once.
    ``agreed`` is Pending's.

    Raises:
        Interrupted: a signal came and was not looked at; from the error that ended the loop, if one did.
    """
    check()
    pending = Pending(agreed)
    found = current()

    def note(number: int, frame: Any) -> None:
        if pending.number is None:
            pending.number, pending.since = number, time.monotonic()
        elif time.monotonic() - pending.since > PATIENCE:
            signal.signal(number, found[number])
            signal.raise_signal(number)

    with handled(note):
        try:
            yield pending
        except Exception as error:
            if pending.number is not None:
                raise Interrupted(pending.number) from error
            raise
    pending.check()
