"""Write a folder of token files once, and read it through memory maps:

    train.bin, val.bin     token ids, uint16 or uint32, nanoGPT's layout
    meta.json              counts, dtype, tokenizer, SHA-256 of each file

The folder's name ends in a hash of everything that determines the content. The folder is written under a
temporary name and renamed, so a folder that exists is complete, even if two processes prepare the same
tokens."""

import hashlib
import json
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import tokenizers
from data.shards import Shards, map_file
from data.windows import Tokens
from system.errors import DataError
from system.files import small_text

FORMAT = 2
LARGEST = 2**26  # largest meta.json, in bytes; enough for a tokenizer of 2^20 tokens
SPLITS = ("train", "val")
ABANDONED = 86400  # seconds after which the process that writes a temporary folder must have been killed
ALWAYS_VERIFIED = 2**26  # bytes; the SHA-256 of token files up to this size is verified at every start


@dataclass(frozen=True)
class Prepared:
    """The tokens of both splits, 1-D memory maps, and the tokenizer that made them."""

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


def token_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def digest(content: bytes | dict[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of bytes or of canonical JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def write(folder: Path, meta: dict[str, Any], splits: "dict[str, NDArray[np.unsignedinteger]]") -> None:
    """Write a temporary folder and rename it to ``folder``, unless another process has done so first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".preparing-", dir=folder.parent))
        try:
            for split, tokens in splits.items():
                with (temporary / f"{split}.bin").open("wb") as file:
                    file.write(tokens.data)  # ndarray.tofile misses some errors of the disk
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
            temporary.chmod(0o755)  # mkdtemp gives access to the owner only
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"data.cache: {folder.parent}: {error.strerror or error}; choose a writable folder"
        ) from None


def remove_abandoned(cache: Path) -> None:
    """Remove the temporary folders of killed processes."""
    for folder in cache.glob(".preparing-*"):
        with suppress(OSError):  # another process may be removing it
            if time.time() - folder.stat().st_mtime > ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def read_meta(folder: Path, remedy: str) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """Return meta.json and the tokenizer that it describes. Raises DataError, which ends in ``remedy``."""
    try:
        meta = json.loads(small_text(folder / "meta.json", LARGEST))
        tokenizer = tokenizers.from_spec(meta["tokenizer"])
        if meta.get("dtype", "uint16") not in ("uint16", "uint32"):
            raise ValueError("dtype")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{folder / 'meta.json'}: missing or damaged ({type(error).__name__}); {remedy}"
        ) from None
    return meta, tokenizer


def load(folder: Path, verify: bool, bins: Path | None = None) -> Prepared:
    """Map the token files that the meta.json of ``folder`` describes; they are in ``bins``, by default
    ``folder``.

    Raises:
        DataError: a file is missing, has the wrong size, or fails its checksum.
    """
    remedy = f"delete {folder}, and it will be prepared again"
    meta, tokenizer = read_meta(folder, remedy)
    splits: dict[str, Tokens] = {}
    try:
        dtype = np.dtype(meta["dtype"])
        for split in SPLITS:
            entries = file_entries(meta, split)
            parts = [
                open_file(bins or folder, entry, dtype, verify, "prepare it again" if bins else remedy)
                for entry in entries
            ]
            splits[split] = parts[0] if len(parts) == 1 else Shards(parts)
        digests = {split: str(meta[split]["sha256"]) for split in SPLITS}
    except DataError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{folder / 'meta.json'}: damaged ({type(error).__name__}); {remedy}") from None
    fingerprint = digest({"tokenizer": meta["tokenizer"], "dtype": str(dtype)} | digests)
    return Prepared(bins or folder, splits["train"], splits["val"], tokenizer, fingerprint)


def file_entries(meta: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """Return the entry of each token file of a split; meta.json has no list of files if there is only one."""
    entry = meta[split]
    single = {"name": f"{split}.bin", "tokens": entry["tokens"], "sha256": entry["sha256"]}
    return list(entry.get("files", [single]))


def open_file(
    folder: Path, entry: dict[str, Any], dtype: np.dtype[Any], verify: bool, remedy: str
) -> NDArray[np.unsignedinteger]:
    """Return the tokens, 1-D, of the file that an entry of meta.json describes. Raises DataError, which ends
    in ``remedy``, if the file differs from the entry."""
    file = folder / Path(entry["name"]).name
    offset = int(entry.get("offset", 0))  # bytes before the tokens
    expected = offset + int(entry["tokens"]) * dtype.itemsize
    try:
        size = file.stat().st_size
        if size != expected:
            raise DataError(f"{file}: has {size:,} bytes, not {expected:,}; {remedy}")
        if (verify or size <= ALWAYS_VERIFIED) and file_digest(file) != entry["sha256"]:
            raise DataError(f"{file}: fails its checksum; {remedy}")
        return map_file(file, dtype, offset)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; {remedy}") from None


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
