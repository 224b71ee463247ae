"""Small files of a run: plain data, written whole or not at all, and looked at before it is believed: a run's
folder may be a stranger's."""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from system.terminal import escaped

LARGEST = 2**20  # bytes of a file; ours have some thousand
LONGEST = 2**24  # bytes of a line of metrics.jsonl, which may have many histograms


def first_of(error: ValidationError) -> str:
    """What pydantic complains of first."""
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


def read_typed(file: Path, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """Return a small JSON file's content, checked, the control characters of its texts escaped.

    Raises:
        OSError: the file is missing or unreadable.
        ValueError: it is damaged, or not of this kind.
    """
    try:
        return dict(harmless(kind.validate_python(json.loads(small_text(file, LARGEST)))))
    except ValidationError as error:
        raise ValueError(f"{file.name}: {first_of(error)}") from None
    except RecursionError:
        raise ValueError(f"{file.name}: nested too deeply") from None


def small_text(file: Path, largest: int) -> str:
    """Raises OSError, and ValueError where it is no file, larger than that many bytes, or no UTF-8."""
    if not file.is_file():  # what is a pipe or a device may have no end
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    with file.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{file.name}: more than {largest:,} bytes")
    return content.decode("utf-8")


def lines(file: Path) -> Iterator[bytes]:
    """Those of a file that may be large. Raises OSError, and ValueError at one that is too long."""
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST):
            if len(line) == LONGEST:
                raise ValueError(f"{file.name}: a line of more than {LONGEST:,} bytes")
            yield line


def harmless(value: Any) -> Any:
    """Plain data with the control characters of its texts escaped. Raises ValueError at a whole number that
    none of ours is, as it has no float."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number of more than 63 bits")
    if isinstance(value, dict):
        return {harmless(key): harmless(inner) for key, inner in value.items()}
    return type(value)(map(harmless, value)) if isinstance(value, list | tuple) else value


def jsonable(value: Any) -> Any:
    """JSON has no NaN or infinity: they are the strings NaN, Infinity, -Infinity."""
    if isinstance(value, dict):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """An OSError in here says which file it is about; that of a full disk does not by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def write_atomically(file: Path, text: str, sync: bool = False) -> None:
    """Readers see the old content or the new, never a part; with ``sync``, after a power failure, too."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with naming(file), temporary.open("x", encoding="utf-8") as stream:  # x follows no link
            stream.write(text)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


HEADER_LIMIT = 2**26  # bytes; 10,000 blocks take 54 million, a tokenizer of 2^20 tokens 14 million


def header_length(path: Path) -> int:
    """Bytes before the tensors: a safetensors file opens with 8 bytes of length, then that much JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > HEADER_LIMIT:
        raise ValueError("header too long")
    return 8 + length
