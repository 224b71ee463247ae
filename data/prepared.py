"""Text and tokenizer → a folder of tokens, built once and read through a memory map:

    train.bin, val.bin     token ids, uint16 or uint32, nanoGPT's layout
    meta.json              counts, dtype, tokenizer, SHA-256 of each file

The folder is named by what determines its content, built beside its place and renamed into it: a folder that
is there is whole, and two processes that prepare at once end with one.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import DataError, corpora, tokenizers

FORMAT = 1


@dataclass(frozen=True)
class Prepared:
    """Tokens of both splits, 1-D arrays in memory maps, and the tokenizer that made them."""

    folder: Path
    train: NDArray[np.unsignedinteger]
    val: NDArray[np.unsignedinteger]
    tokenizer: tokenizers.Tokenizer
    fingerprint: str  # of the tokens and the tokenizer, wherever they came from

    def check_length(self, block_size: int) -> None:
        """Raises DataError when a split has no window of block_size tokens and the one that follows."""
        for split, tokens in (("training", self.train), ("validation", self.val)):
            if len(tokens) <= block_size:
                raise DataError(
                    f"data: the {split} split has {len(tokens):,} tokens, but model.block_size={block_size} "
                    f"needs at least {block_size + 1}; use a longer text, a smaller model.block_size "
                    "or another data.val_fraction"
                )


def digest(content: bytes | dict[str, Any]) -> str:
    """SHA-256, in hexadecimal, of bytes or of canonical JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()


def prepare(
    *,
    corpus: str,
    path: str | None,
    tokenizer: str,
    vocab_size: int,
    val_fraction: float,
    verify: bool,
    cache: str,
) -> Prepared:
    """The tokens of a corpus, made now if they were not made before; the last val_fraction of them validate.

    Raises:
        DataError: the text is missing, unreadable or not UTF-8, or the prepared folder is damaged.
    """
    if corpus == "shakespeare":
        text_digest, read = corpora.SHAKESPEARE_SHA256, corpora.shakespeare
    else:
        assert path is not None  # the config checks it
        text = corpora.text(path)
        text_digest, read = digest(text.encode()), lambda: text
    key = digest(
        {"format": FORMAT, "text": text_digest, "tokenizer": tokenizer, "val_fraction": val_fraction}
    )
    folder = Path(cache) / f"{corpus}-{tokenizer}-{key[:12]}"
    if not folder.is_dir():
        build(folder, read, tokenizer, val_fraction)
    return load(folder)


def build(folder: Path, read: Callable[[], str], tokenizer: str, val_fraction: float) -> None:
    """Tokenize and write ``folder``; whoever renames first wins, and the other's work is thrown away."""
    text = read()
    made = tokenizers.KINDS[tokenizer].train(text)
    tokens = made.encode(text).astype(np.uint16 if made.vocab_size <= 2**16 else np.uint32)
    cut = len(tokens) - round(len(tokens) * val_fraction)
    splits = {"train": tokens[:cut], "val": tokens[cut:]}
    meta = {"format": FORMAT, "characters": len(text), "dtype": str(tokens.dtype), "tokenizer": made.spec}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".preparing-", dir=folder.parent))
        try:
            for split, part in splits.items():
                part.tofile(beside / f"{split}.bin")
                meta[split] = {"tokens": len(part), "sha256": digest(part.tobytes())}
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
            f"data.cache: {folder.parent}: {error.strerror}; name a folder that can be written"
        ) from None


def load(folder: Path) -> Prepared:
    """Map a prepared folder. Raises DataError when a file is missing or not of the size it should be."""
    again = f"delete {folder} and it will be prepared again"
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        tokenizer = tokenizers.from_spec(meta["tokenizer"])
        dtype, counts = (
            np.dtype(meta["dtype"]),
            {split: int(meta[split]["tokens"]) for split in ("train", "val")},
        )
        fingerprint = digest({"tokenizer": meta["tokenizer"]} | {s: meta[s]["sha256"] for s in counts})
        splits = {}
        for split, count in counts.items():
            file = folder / f"{split}.bin"
            if file.stat().st_size != count * dtype.itemsize:
                raise DataError(
                    f"{file}: has {file.stat().st_size:,} bytes, not {count * dtype.itemsize:,}; {again}"
                )
            empty = np.empty(0, dtype)  # a file of no bytes cannot be mapped
            splits[split] = np.memmap(file, dtype=dtype, mode="r") if count else empty
    except DataError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder}: damaged prepared data ({type(error).__name__}); {again}") from None
    return Prepared(folder, splits["train"], splits["val"], tokenizer, fingerprint)
