"""Documents → pieces of text, so that no long one is made tokens of all at once. No token spans a cut."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from system.errors import DataError

PIECE = 2**22  # characters, or bytes of JSON; a piece ends at the first place behind them

# A string of JSON; and in one, a space between words, where what is before it is no escape, as \u00e9 is.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
RAW_SPACE = re.compile(rb"(?<=[0-9A-Za-z]{6}) (?=[A-Za-z])")
SPACE = re.compile("(?<=[0-9A-Za-z]) (?=[A-Za-z])")


def pieces(text: str) -> Iterator[str]:
    start = 0
    while cut := SPACE.search(text, start + PIECE):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def ended(some: Iterable[str], ending: str) -> Iterator[str]:
    """Pieces, the last of them with an ending."""
    last = ""
    for piece in some:
        yield last
        last = piece
    yield last + ending


def document(content: bytes, start: int, end: int, field: str, file: Path) -> Iterator[str]:
    """The text that a line of JSON has in ``field``. Raises DataError where it has none."""
    line = content[start:end] if end - start <= PIECE else b""
    try:
        for piece in [json.loads(line)[field]] if line else long_document(content, start, end, field):
            piece.encode()  # no lone surrogate is in it
            yield str(piece)
        return
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    shown = content[start : min(end, start + 60)].decode(errors="replace")
    raise DataError(f"{file}: a line is no object with a text {field!r}: {shown}…; mend it, or give --field")


def long_document(content: bytes, start: int, end: int, field: str) -> Iterable[str]:
    """The same, where the text as a whole would take four times its bytes if one emoji is in it. Marks, which
    nobody can guess, take the place of long strings; what is left is parsed, and the string that ``field``
    has in pieces."""
    long = [m.span() for m in STRING.finditer(content, start, end) if m.end() - m.start() > PIECE]
    mark, rest = secrets.token_hex(), b""
    for number, (first, last) in enumerate(long):
        rest += content[start:first] + f'"{mark}{number}"'.encode()
        start = last
    found = json.loads(rest + content[start:end])[field]
    if not found.startswith(mark):
        yield from pieces(found)
        return
    first, last = long[int(found.removeprefix(mark))]
    first += 1  # its quotation mark
    while cut := RAW_SPACE.search(content, first + PIECE, last):
        yield json.loads(b'"%b"' % content[first : cut.start()])
        first = cut.start()
    yield json.loads(b'"%b' % content[first:last])
