"""A folder of token files, which is read through memory maps:

    train.bin, val.bin     token ids, uint16 or uint32, nothing else: nanoGPT's layout
    meta.json              the tokenizer, the token type, and name, length and SHA-256 of each split's files

data/external.py describes other programs' folders in the same way. There, a split may have several files, and
a file may have a header."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, NonNegativeInt, ValidationError

from data import tokenizers
from data.errors import DataError
from data.files import digest, file_digest, first_error

SPLITS = ("train", "val")
ALWAYS_VERIFIED = 2**26  # bytes; the SHA-256 of files up to this size is verified at every start


class TokenFile(BaseModel):
    name: str
    tokens: NonNegativeInt
    sha256: str  # of the file
    offset: NonNegativeInt = 0  # bytes before the tokens


class Meta(BaseModel):
    """The content of meta.json; other programs may leave out the files of the splits."""

    tokenizer: dict[str, Any]  # its spec
    dtype: Literal["uint16", "uint32"] = "uint16"  # as in nanoGPT
    train: list[TokenFile] = []
    val: list[TokenFile] = []

    def fingerprint(self) -> str:
        """Return a hash of the tokens and the tokenizer."""
        digests = {}
        for split, files in (("train", self.train), ("val", self.val)):
            several = {"files": [[file.tokens, file.sha256] for file in files]}
            digests[split] = files[0].sha256 if len(files) == 1 else digest(several)
        return digest({"tokenizer": self.tokenizer, "dtype": self.dtype} | digests)


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


Tokens = NDArray[np.unsignedinteger] | Shards  # one split, 1-D


def write_tokens(
    folder: Path,
    tokenizer: tokenizers.Tokenizer,
    parts: Iterable[tuple[str, NDArray[np.integer]]],
) -> Meta:
    """Write the token files and meta.json into a folder. ``parts`` are pairs: a split, and token ids, 1-D, to
    append to it."""
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    counts, digests = dict.fromkeys(SPLITS, 0), {split: hashlib.sha256() for split in SPLITS}
    with (folder / "train.bin").open("wb") as train, (folder / "val.bin").open("wb") as val:
        for split, ids in parts:
            content = ids.astype(dtype, copy=False).data
            (train if split == "train" else val).write(content)
            digests[split].update(content)
            counts[split] += len(ids)
    entries = {
        split: [TokenFile(name=f"{split}.bin", tokens=counts[split], sha256=digests[split].hexdigest())]
        for split in SPLITS
    }
    meta = Meta(tokenizer=tokenizer.spec, dtype=dtype, **entries)
    (folder / "meta.json").write_text(meta.model_dump_json(indent=1), encoding="utf-8")
    return meta


def read_meta(file: Path, remedy: str) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return the content of a meta.json and the tokenizer that it describes. Raises DataError."""
    try:
        meta = Meta.model_validate_json(file.read_bytes())
        return meta, tokenizers.from_spec(meta.tokenizer)
    except (OSError, ValueError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else str(error).partition(";")[0]
        raise DataError(f"{file}: missing or damaged ({why}); {remedy}") from None


def open_split(folder: Path, files: list[TokenFile], dtype: str, verify: bool, remedy: str) -> Tokens:
    """Return the tokens of a split's files. Raises DataError, whose message ends in ``remedy``, if a file is
    missing or damaged. The SHA-256 of large files is checked only if ``verify``."""
    if not files:
        raise DataError(f"{folder / 'meta.json'}: missing or damaged (a split is missing); {remedy}")
    parts = []
    for entry in files:
        file = folder / entry.name
        try:
            size, expected = file.stat().st_size, entry.offset + entry.tokens * np.dtype(dtype).itemsize
            if size != expected:
                raise DataError(f"{file}: has {size:,} bytes, not {expected:,}; {remedy}")
            if (verify or size <= ALWAYS_VERIFIED) and file_digest(file) != entry.sha256:
                raise DataError(f"{file}: fails its checksum; {remedy}")
            parts.append(map_file(file, dtype, entry.offset))
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}; {remedy}") from None
    return parts[0] if len(parts) == 1 else Shards(parts)


def map_file(file: Path, dtype: str, offset: int) -> NDArray[np.unsignedinteger]:
    """Return a memory map of the tokens, 1-D; an empty file, which cannot be mapped, gives an empty array."""
    if file.stat().st_size <= offset:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(file, dtype, "r", offset))  # an np.memmap itself is slower to index
