"""Checks of small files that comparison/ reads."""

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 2**20  # the most bytes of a JSON file; a few thousand are typical
LONGEST = 2**24  # the most bytes of a line of metrics.jsonl, which may hold many histograms


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is invalid or if an object has a key twice:
    programs differ in which of the two values they take."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"the key {key[:100]!r} occurs twice")
        return values

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def check_is_regular(file: Path) -> None:
    """Raise OSError unless the file is there and is neither a folder nor a pipe or device, which may be
    endless."""
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    if not file.is_file():
        raise OSError(errno.EINVAL, "is not a regular file", str(file))


def small_text(file: Path, largest: int) -> str:
    """Return the text of a regular file. Raises OSError, and ValueError if it has more than ``largest`` bytes
    or is not UTF-8."""
    check_is_regular(file)
    with file.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{file.name}: has more than {largest:,} bytes")
    return content.decode("utf-8")


def lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a large file. Raises OSError, and ValueError at a line longer than LONGEST."""
    check_is_regular(file)
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST):
            if len(line) == LONGEST:
                raise ValueError(f"{file.name}: has a line of more than {LONGEST:,} bytes")
            yield line


def escape_strings(value: Any) -> Any:
    """Return plain data with the control characters in its strings escaped. Raises ValueError at an integer
    of more than 63 bits, which may be too large for a float."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("an integer has more than 63 bits")
    if isinstance(value, dict):
        return {escape_strings(key): escape_strings(inner) for key, inner in value.items()}
    return type(value)(map(escape_strings, value)) if isinstance(value, list | tuple) else value
