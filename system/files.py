"""Read and write small files of plain data: they are written atomically, and validated when they are read, as
the folder of a run may be untrusted."""

import errno
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from system.terminal import escaped

LARGEST = 2**20  # the most bytes of a JSON file; a few thousand are typical
LONGEST = 2**24  # the most bytes of a line of metrics.jsonl, which may hold many histograms
HEADER_LIMIT = 2**26  # bytes; 10,000 blocks take 54 million, a tokenizer of 2^20 tokens 14 million


def first_error(error: ValidationError) -> str:
    """Return pydantic's first error as ``key: message``."""
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


def read_typed(file: Path, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the validated content of a small JSON file, with control characters in strings escaped.
    Raises OSError, and ValueError if the content is invalid."""
    try:
        return dict(escape_strings(kind.validate_python(parse_json(small_text(file, LARGEST)))))
    except ValidationError as error:
        raise ValueError(f"{file.name}: {first_error(error)}") from None
    except RecursionError:  # in escape_strings
        raise ValueError(f"{file.name}: the JSON is nested too deeply") from None


def read_or_empty(file: Path, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the validated content of a small JSON file; empty if it is missing or invalid."""
    try:
        return read_typed(file, kind)
    except (OSError, ValueError):
        return {}


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
        return escaped(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("an integer has more than 63 bits")
    if isinstance(value, dict):
        return {escape_strings(key): escape_strings(inner) for key, inner in value.items()}
    return type(value)(map(escape_strings, value)) if isinstance(value, list | tuple) else value


def jsonable(value: Any) -> Any:
    """Return plain data with non-finite numbers, which JSON lacks, as strings: NaN, Infinity, -Infinity."""
    if isinstance(value, dict):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextmanager
def name_in_errors(file: Path) -> Iterator[None]:
    """Context manager: add the file's name to an OSError without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def write_atomically(file: Path, text: str, sync: bool = False) -> None:
    """Write a file so that readers see all of the old content or all of the new; with ``sync``, also after
    a power failure."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        # x follows no link
        with name_in_errors(file), temporary.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:  # also Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def umask() -> int:
    """Return the permissions that new files of this process lack, which can only be read by setting them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def new_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """Context manager: yield a temporary folder, whose name begins with ``prefix``. It is renamed to
    ``folder`` unless an error is raised."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o777 & ~umask())  # mkdtemp gives access to the owner only
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def safetensors_header(path: Path) -> bytes:
    """Return the bytes of a safetensors file before the tensors: 8 that hold n, then n of JSON. Raises
    OSError, and ValueError if n is too large."""
    with path.open("rb") as file:
        length = file.read(8)
        n = int.from_bytes(length, "little")
        if n > HEADER_LIMIT:
            raise ValueError("the header is too long")
        return length + file.read(n)
