"""Join several token files into one array; read the two formats of a token file.

nanoGPT's format    token ids, nothing else
llm.c's format      a header of 1024 bytes, which starts with a magic number, a version and the number of
                    tokens, then token ids"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from system.errors import DataError

HEADER = 1024  # bytes of llm.c's header
# (magic number, version) -> token type of llm.c's files
TOKEN_TYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype(np.uint16),
    (20240801, 7): np.dtype(np.uint32),
}


class Shards:
    """1-D arrays of tokens, concatenated without a copy: ``shards[positions]`` has the shape of
    ``positions``."""

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        part_numbers = np.searchsorted(self.ends, positions, side="right")
        tokens = np.empty(positions.shape, self.parts[0].dtype)
        for number in np.unique(part_numbers):
            part, mask = self.parts[number], part_numbers == number
            tokens[mask] = part[positions[mask] - (self.ends[number] - len(part))]
        return tokens


def header(file: Path) -> np.dtype[Any] | None:
    """Return the token type that llm.c's header states; None if the file has no such header. Raises DataError
    if the version is unknown or the number of tokens is wrong."""
    with file.open("rb") as stream:
        start = stream.read(HEADER)
    if len(start) < HEADER:
        return None
    magic, version, count = map(int, np.frombuffer(start[:12], "<i4"))
    if magic not in {known for known, _ in TOKEN_TYPES}:
        return None
    if (dtype := TOKEN_TYPES.get((magic, version))) is None:
        raise DataError(f"{file}: has llm.c's version {version}, which is unknown; convert it")
    size = file.stat().st_size - HEADER
    if size != count * dtype.itemsize:
        raise DataError(
            f"{file}: its header promises {count:,} tokens, but {size:,} bytes follow; get the file again"
        )
    return dtype


def map_file(file: Path, dtype: np.dtype[Any], offset: int) -> NDArray[np.unsignedinteger]:
    """Return a memory map of the tokens, 1-D; an empty file, which cannot be mapped, gives an empty array."""
    if file.stat().st_size <= offset:
        return np.empty(0, dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=offset)
