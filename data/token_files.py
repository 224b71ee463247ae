"""Text and tokenizer → a folder of tokens, built once and read through a memory map:

    train.bin, val.bin     token ids, uint16 or uint32, nanoGPT's layout
    meta.json              counts, dtype, tokenizer, SHA-256 of each file

The folder is named by what determines its content, built beside its place and renamed into it: a folder that
is there is whole, and two processes that prepare at once end with one.
Folders that were made elsewhere are taken as they are: adopted.py.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from data import tokenizers
from data.shards import Shards, mapped
from data.windows import Tokens
from system.errors import DataError
from system.files import small_text

FORMAT = 2
LARGEST = 2**26  # bytes of meta.json, with a tokenizer of 2^20 tokens in it
SPLITS = ("train", "val")
LEFT = 3600  # seconds after which what a process that is gone had in work is removed
ALWAYS_VERIFIED = 2**26  # bytes of a token file that is read through at every start, which takes a moment


@dataclass(frozen=True)
class Prepared:
    """Tokens of both splits, 1-D arrays in memory maps, and the tokenizer that made them."""

    folder: Path
    train: Tokens
    val: Tokens
    tokenizer: tokenizers.Tokenizer
    fingerprint: str  # of the tokens and the tokenizer, wherever they came from

    def check_length(self, block_size: int) -> None:
        """Raises DataError when a split has no window of block_size tokens and the one that follows."""
        for split, tokens in (("training", self.train), ("validation", self.val)):
            if len(tokens) <= block_size:
                raise DataError(
                    f"data: the {split} split has {len(tokens):,} tokens, but model.block_size={block_size} "
                    f"needs at least {block_size + 1}; use a longer text, a smaller model.block_size "
                    "or another split"
                )


def digest(content: bytes | dict[str, Any]) -> str:
    """SHA-256, in hexadecimal, of bytes or of canonical JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def write(folder: Path, meta: dict[str, Any], splits: "dict[str, NDArray[np.unsignedinteger]]") -> None:
    """Write ``folder`` beside its place and rename it; whoever is first wins, others' work is thrown away."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear(folder.parent)
        here = f".preparing-{os.getpid()}@{platform.node()}-"
        beside = Path(tempfile.mkdtemp(prefix=here, dir=folder.parent))
        try:
            for split, tokens in splits.items():
                with (beside / f"{split}.bin").open("wb") as file:
                    file.write(tokens.data)  # tofile does not tell of all that a disk refuses
            (beside / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
            beside.chmod(0o755)  # mkdtemp's is for the owner alone
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"data.cache: {folder.parent}: {error.strerror or error}; name a folder that can be written"
        ) from None


def clear(cache: Path) -> None:
    """Remove what processes of this machine left that were killed while they prepared."""
    for left in cache.glob(".preparing-*"):
        found = re.match(r"\.preparing-(\d{1,9})@(.*)-", left.name)
        with suppress(OSError):  # another one may be removing it
            old = time.time() - left.stat().st_mtime > LEFT  # numbers of processes are the same in containers
            if found and found[2] == platform.node() and old and not psutil.pid_exists(int(found[1])):
                shutil.rmtree(left, ignore_errors=True)


def read_meta(folder: Path, again: str) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """meta.json, and the tokenizer in it. Raises DataError, with ``again`` to do, where it cannot be that."""
    try:
        meta = json.loads(small_text(folder / "meta.json", LARGEST))
        tokenizer = tokenizers.from_spec(meta["tokenizer"])
        if meta.get("dtype", "uint16") not in ("uint16", "uint32"):
            raise ValueError("dtype")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{folder / 'meta.json'}: missing or damaged ({type(error).__name__}); {again}"
        ) from None
    return meta, tokenizer


def load(folder: Path, verify: bool, bins: Path | None = None) -> Prepared:
    """Map the token files that ``folder`` describes, which are in it, or in ``bins``.

    Raises:
        DataError: a file is missing, not of its size, or not the one it was.
    """
    again = f"delete {folder} and it will be prepared again"
    meta, tokenizer = read_meta(folder, again)
    try:
        dtype = np.dtype(meta["dtype"])
        files = {split: [Listed.of(file) for file in listed(meta, split)] for split in SPLITS}
        digests = {split: str(meta[split]["sha256"]) for split in SPLITS}
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{folder / 'meta.json'}: damaged ({type(error).__name__}); {again}") from None
    if bins:
        again = "prepare it again"
    splits: dict[str, Tokens] = {}
    for split in SPLITS:
        parts = [file.opened(bins or folder, dtype, verify, again) for file in files[split]]
        splits[split] = parts[0] if len(parts) == 1 else Shards(parts)
    fingerprint = digest({"tokenizer": meta["tokenizer"], "dtype": str(dtype)} | digests)
    return Prepared(bins or folder, splits["train"], splits["val"], tokenizer, fingerprint)


def listed(meta: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """What meta.json says of each token file of a split; of the only one it need not say a list."""
    about = meta[split]
    only = {"name": f"{split}.bin", "tokens": about["tokens"], "sha256": about["sha256"]}
    return list(about.get("files", [only]))


@dataclass(frozen=True)
class Listed:
    """A token file, as meta.json says it is."""

    name: str
    tokens: int
    sha256: str
    offset: int  # bytes before the tokens

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Listed":
        offset = int(said.get("offset", 0))
        return cls(Path(said["name"]).name, int(said["tokens"]), str(said["sha256"]), offset)

    def opened(
        self, folder: Path, dtype: np.dtype[Any], verify: bool, again: str
    ) -> NDArray[np.unsignedinteger]:
        """Its tokens, 1-D. Raises DataError, with ``again`` to do, where it is not that."""
        file = folder / self.name
        size = self.offset + self.tokens * dtype.itemsize
        try:
            found = file.stat().st_size
            if found != size:
                raise DataError(f"{file}: has {found:,} bytes, not {size:,}; {again}")
            if (verify or size <= ALWAYS_VERIFIED) and file_digest(file) != self.sha256:
                raise DataError(f"{file}: is not what was prepared (its SHA-256 is another); {again}")
            return mapped(file, dtype, self.offset)
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}; {again}") from None


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
