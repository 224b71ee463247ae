"""Token files that are read as one array: those of a corpus too large for one, or made by others in parts.

nanoGPT's   token ids, nothing else
llm.c's     1024 bytes before them, which begin with a magic number, a version and the number of tokens
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from system.errors import DataError

HEADER = 1024  # bytes
# of llm.c's files, by magic number and version
KINDS: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype(np.uint16),
    (20240801, 7): np.dtype(np.uint32),
}


class Shards:
    """Arrays of tokens, 1-D, one after another, as one: ``shards[positions]`` has the shape of positions."""

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        of = np.searchsorted(self.ends, positions, side="right")
        found = np.empty(positions.shape, self.parts[0].dtype)
        for number in np.unique(of):
            here = of == number
            found[here] = self.parts[number][positions[here] - (self.ends[number] - len(self.parts[number]))]
        return found


def header(file: Path) -> np.dtype[Any] | None:
    """The type of the tokens behind llm.c's header; None where there is no such header. Raises DataError
    where it is of an unknown version, or says another number than there are."""
    with file.open("rb") as stream:
        start = stream.read(HEADER)
    if len(start) < HEADER:
        return None
    magic, version, count = map(int, np.frombuffer(start[:12], "<i4"))
    if magic not in {known for known, _ in KINDS}:
        return None
    if (dtype := KINDS.get((magic, version))) is None:
        raise DataError(f"{file}: is of llm.c's version {version}, which is not known; convert it")
    size = file.stat().st_size - HEADER
    if size != count * dtype.itemsize:
        raise DataError(f"{file}: says {count:,} tokens, and has {size:,} bytes of them; get it again")
    return dtype


def mapped(file: Path, dtype: np.dtype[Any], offset: int = 0) -> NDArray[np.unsignedinteger]:
    """The file's tokens, 1-D; a file of no bytes cannot be mapped."""
    if file.stat().st_size <= offset:
        return np.empty(0, dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=offset)
