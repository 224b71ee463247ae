"""Write a folder of token files once, and read it:

    train.bin, val.bin     token ids, uint16 or uint32, nanoGPT's layout
    meta.json              counts, dtype, tokenizer, SHA-256 of each file

The folder's name ends in a hash of everything that determines the content. The folder is written under a
temporary name and renamed, so a folder that exists is complete, even if two processes prepare the same
tokens."""

import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, NonNegativeInt

from data import tokenizers
from data.shards import Shards, map_file
from data.windows import Tokens
from system.errors import DataError
from system.files import new_folder, small_text

FORMAT = 2
LARGEST = 2**26  # largest meta.json, in bytes; enough for a tokenizer of 2^20 tokens
SPLITS = ("train", "val")
REMEDY = "prepare the files again"  # for token files that other programs wrote
ABANDONED = 86400  # seconds after which a temporary folder counts as left by a killed process
ALWAYS_VERIFIED = 2**26  # bytes; the SHA-256 of token files up to this size is verified at every start
PART = 2**20  # tokens that are counted at once
IN_MEMORY = 2**26  # bytes; a split up to this size is read into memory


@dataclass(frozen=True)
class Prepared:
    """The tokens of both splits, 1-D, and the tokenizer that made them."""

    folder: Path
    train: Tokens
    val: Tokens
    tokenizer: tokenizers.Tokenizer
    fingerprint: str  # hash of the tokens and the tokenizer

    def check_length(self, block_size: int) -> None:
        """Raise DataError if a split is shorter than a window of block_size tokens and its next token."""
        for split, tokens in (("training", self.train), ("validation", self.val)):
            if len(tokens) <= block_size:
                raise DataError(
                    f"data: the {split} split has {len(tokens):,} tokens, but model.block_size={block_size} "
                    f"needs at least {block_size + 1}; use a longer text, a smaller model.block_size "
                    "or another split"
                )

    def val_bytes(self) -> int:
        """Return how many bytes of text the validation split decodes to without its first token, which is no
        target. A special token, which ends a document, counts as one byte, like the line break that ends a
        document for other tokenizers."""
        special = len(getattr(self.tokenizer, "special", ()))  # the last of the vocabulary
        words = range(self.tokenizer.vocab_size - special)
        lengths = np.array([*(len(self.tokenizer.decode([i])) for i in words), *[1] * special])
        count = len(self.val)
        parts = (np.arange(start, min(start + PART, count)) for start in range(1, count, PART))
        return sum(int(lengths[self.val[part]].sum()) for part in parts)


class TokenFile(BaseModel):
    """The entry of a token file in meta.json."""

    name: str
    tokens: NonNegativeInt
    sha256: str
    offset: NonNegativeInt = 0  # bytes before the tokens


class Split(BaseModel):
    """The entry of a split in meta.json; ``files`` is left out if SPLIT.bin is the only file."""

    tokens: NonNegativeInt
    sha256: str
    files: list[TokenFile] = []


class Meta(BaseModel):
    """The content of meta.json about the tokens; other programs may leave out the splits."""

    tokenizer: Any = None
    dtype: Literal["uint16", "uint32"] = "uint16"  # as in nanoGPT
    train: Split | None = None
    val: Split | None = None


def token_type(vocab_size: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def digest(content: bytes | dict[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of bytes or of canonical JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def write(folder: Path, meta: dict[str, Any], splits: "dict[str, NDArray[np.unsignedinteger]]") -> None:
    """Write ``folder``, unless another process has done so first."""
    try:
        remove_abandoned(folder.parent)
        with new_folder(folder, prefix=".preparing-") as temporary:
            for split, tokens in splits.items():
                with (temporary / f"{split}.bin").open("wb") as file:
                    file.write(tokens.data)  # ndarray.tofile misses some errors of the disk
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    except OSError as error:
        if not folder.is_dir():
            raise DataError(
                f"data.cache: {folder.parent}: {error.strerror or error}; choose a writable folder"
            ) from None


def remove_abandoned(cache: Path) -> None:
    """Remove the temporary folders of killed processes."""
    for folder in cache.glob(".preparing-*"):
        with suppress(OSError):  # another process may be removing it
            if time.time() - folder.stat().st_mtime > ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def read_meta(folder: Path, remedy: str) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return meta.json and the tokenizer that it describes. A DataError for a bad file ends in ``remedy``."""
    file = folder / "meta.json"
    try:
        meta = Meta.model_validate_json(small_text(file, LARGEST))
        if meta.tokenizer is not None:
            return meta, tokenizers.from_spec(meta.tokenizer)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: missing or damaged ({type(error).__name__}); {remedy}") from None
    raise DataError(f"{file}: it does not say which tokenizer; add the key tokenizer")


def load(folder: Path, verify: bool, bins: Path | None = None) -> Prepared:
    """Open the token files that the meta.json of ``folder`` describes; they are in ``bins``, by default
    ``folder``.

    Raises:
        DataError: a file is missing, has the wrong size, or fails its checksum.
    """
    remedy = f"delete {folder}, and it will be prepared again"
    meta, tokenizer = read_meta(folder, remedy)
    if meta.train is None or meta.val is None:
        raise DataError(f"{folder / 'meta.json'}: damaged, as a split is missing; {remedy}")

    def open_split(name: str, split: Split) -> Tokens:
        single = TokenFile(name=f"{name}.bin", tokens=split.tokens, sha256=split.sha256)
        parts = [
            open_file(bins or folder, entry, np.dtype(meta.dtype), split, verify, REMEDY if bins else remedy)
            for entry in split.files or [single]
        ]
        return parts[0] if len(parts) == 1 else Shards(parts)

    train, val = open_split("train", meta.train), open_split("val", meta.val)
    digests = {"train": meta.train.sha256, "val": meta.val.sha256}
    fingerprint = digest({"tokenizer": meta.tokenizer, "dtype": meta.dtype} | digests)
    return Prepared(bins or folder, train, val, tokenizer, fingerprint)


def open_file(
    folder: Path, entry: TokenFile, dtype: np.dtype[Any], split: Split, verify: bool, remedy: str
) -> NDArray[np.unsignedinteger]:
    """Return the tokens, 1-D, of the file of ``split`` that an entry of meta.json describes: from memory if
    the split is small, as a map of a file would end the process if the file was cut. Raises DataError, whose
    message ends in ``remedy``, if the file differs from the entry."""
    file = folder / Path(entry.name).name
    expected = entry.offset + entry.tokens * dtype.itemsize
    try:
        size = file.stat().st_size
        if size != expected:
            raise DataError(f"{file}: has {size:,} bytes, not {expected:,}; {remedy}")
        content = file.read_bytes() if split.tokens * dtype.itemsize <= IN_MEMORY else None
        if content is not None or verify or size <= ALWAYS_VERIFIED:
            actual = file_digest(file) if content is None else digest(content)
            if actual != entry.sha256:
                raise DataError(f"{file}: fails its checksum; {remedy}")
        if content is None:
            return map_file(file, dtype, entry.offset)
        return np.frombuffer(content[entry.offset :], dtype)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; {remedy}") from None


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
