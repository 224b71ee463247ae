"""Small files of a run: plain data, written whole or not at all."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def read_json(file: Path) -> dict[str, Any]:
    """The file's content, or nothing where there is no such file or it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


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
    temporary = file.with_name(f".{file.name}.tmp")
    with naming(file), temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        if sync:
            stream.flush()
            os.fsync(stream.fileno())
    temporary.replace(file)
