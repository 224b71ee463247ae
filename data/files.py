"""Small files of plain data: written whole or not at all, and checked when they are read."""

import hashlib
import json
import lzma
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data.errors import DataError


def first_error(error: ValidationError) -> str:
    """Return pydantic's first error as ``key: message``."""
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


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
    """Add the file's name to an OSError without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def write_atomically(file: Path, text: str, sync: bool = False) -> None:
    """Write a file so that readers see all of the old content or all of the new; with ``sync``, also after
    a power failure."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with name_in_errors(file), temporary.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes ``folder`` at the end unless an error is raised."""
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def digest(content: bytes | dict[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of bytes or of canonical JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(file: Path, sha256: str) -> str:
    """Return the text of a compressed file of this project. Raises DataError if it is not the pinned text."""
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError):
        content = b""
    if digest(content) != sha256:
        raise DataError(f"{file}: is missing or damaged; restore it: git checkout {file}")
    return content.decode()
