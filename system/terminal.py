"""Output: text without control characters, and streams whose reader may go away."""

import io
import os
import sys
import unicodedata
from typing import Any

KEPT = "\u200c\u200d"  # they join letters and emoji: common in texts, and harmless


def escaped(text: str, keep: str = "") -> str:
    """Return text with control characters, those of the writing direction and other invisible ones as
    ``\\x1b``: untrusted text could otherwise move the cursor, or colour or hide what follows. The characters
    in ``keep`` stay, such as "\\n"."""
    if text.isprintable():  # nearly all text is
        return text
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in keep + KEPT
        else c
        for c in text
    )


class Unread(io.FileIO):
    """A file descriptor whose reader may go away, like head: later output is dropped."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(content)


def outlive_readers() -> None:
    """Let the program continue when nobody reads its output any more. No effect on Windows, whose consoles
    have a stream of their own."""
    if os.name == "nt":
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            unread = io.BufferedWriter(Unread(stream.fileno(), "w", closefd=False))
            at_once = stream.line_buffering or stream.write_through
            wrapper = io.TextIOWrapper(unread, stream.encoding, stream.errors, line_buffering=at_once)
            setattr(sys, name, wrapper)


def duration(seconds: float) -> str:
    """Return a short text such as 42 s, 17 min or 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
