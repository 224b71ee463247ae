"""Print safely and without silences: escape control characters, keep running when the reader of a stream has
closed it, and say what takes long."""

import errno
import io
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

PATIENCE = 0.9  # seconds without output
began = [time.monotonic() - time.process_time()]  # about when the program began, until it announces a block
JOINERS = "\u200c\u200d"  # join letters and emoji: common in texts, and harmless


def escaped(text: str, keep: str = "") -> str:
    """Return text in which control characters and other invisible characters are escaped, as ``\\x1b``:
    untrusted text could otherwise move the cursor, or colour or hide what follows. Characters in ``keep``,
    such as "\\n", are not escaped."""
    if text.isprintable():  # nearly all text is
        return text
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in keep + JOINERS
        else c
        for c in text
    )


def open_missing_streams() -> None:
    """Open the null device in place of each standard stream that was closed before the program began, by
    ``>&-``: the next opened file would otherwise take its number, and receive what C code prints. Streams
    whose encoding lacks a character, as in LC_ALL=C, get an escape in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the null device gets the lowest free number, that of the stream
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 open until the end
            os.set_inheritable(stream.fileno(), True)  # for the processes that this one starts
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # keeps the number open if sys.stdout is replaced
        elif mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            with suppress(OSError):  # a file descriptor that was replaced by a pipe cannot seek
                stream.reconfigure(errors="backslashreplace")


class SurvivingWriter(io.FileIO):
    """A file descriptor that discards output once its reader, such as head, has closed it, or its disk is
    full or broken: neither is a reason to end a run."""

    def write(self, content: Any) -> int:
        try:
            while (written := super().write(content)) is None:  # another program made it non-blocking
                os.set_blocking(self.fileno(), True)
            return written
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(content)


def survive_closed_output() -> None:
    """Keep the program running when the reader of stdout or stderr, such as head, has gone. Has no effect on
    Windows, whose console streams are of another class."""
    if os.name == "nt":
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            buffer = io.BufferedWriter(SurvivingWriter(stream.fileno(), "w", closefd=False))
            line_buffering = stream.line_buffering or stream.write_through
            wrapper = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=line_buffering)
            setattr(sys, name, wrapper)


@contextmanager
def announced(text: str | Callable[[], str], file: TextIO | None = None) -> Iterator[None]:
    """Context manager: if the block takes longer than PATIENCE, print ``text`` and how long it has taken, and
    again at least every two seconds, to ``file``, by default stdout. If ``text`` is a function, what it
    returns is printed instead, unless it is empty; it must not raise. The first block of a program need not
    take so long: see ``first_wait``. Blocks may be nested: the outer one measures the silence, so that
    several short inner blocks do not add up to a long one, and its ``file`` is used; the text is the
    innermost block's. All blocks must be of one thread."""
    doing.append((text, time.monotonic()))
    try:
        if len(doing) > 1:
            yield
        else:
            with announcing(file):
                yield
    finally:
        doing.pop()


# the texts of the blocks that are entered, and when each was entered
doing: list[tuple[str | Callable[[], str], float]] = []


def first_wait(seconds_before: float) -> float:
    """Return after how many seconds a block is announced first. The seconds before a program's first block,
    those of its imports, count as silence; even then a block is not announced in its first moments."""
    return max(PATIENCE - seconds_before, PATIENCE / 3)


def next_wait(seconds: float) -> float:
    """Return after how many seconds a block that has taken ``seconds`` is announced again: later less often,
    but within two seconds even if one line is left out, as it would repeat another of 0.5 s before."""
    return min(max(seconds / 4, PATIENCE), 1.6 * PATIENCE)


@contextmanager
def announcing(file: TextIO | None) -> Iterator[None]:
    ended, now = threading.Event(), time.monotonic()
    seconds_before = now - began.pop() if began else 0.0

    def announce() -> None:
        wait = first_wait(seconds_before)
        while not ended.wait(wait):
            text, entered = doing[-1]
            seconds = time.monotonic() - entered
            how_long = f", for {duration(seconds)}" if seconds >= 0.5 else ""  # not "for 0 s"
            line = f"{text}{how_long}" if isinstance(text, str) else text()
            with suppress(OSError, ValueError):  # the reader has gone, as the next print will notice
                if line:
                    print(line, file=file, flush=True)
            wait = next_wait(seconds)

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def duration(seconds: float) -> str:
    """Return a duration as 42 s, 17 min or 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
