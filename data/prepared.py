"""Tokenize a corpus once, and load its tokens. The cache has one folder a corpus and tokenizer:

    train.bin, val.bin     token ids, uint16 or uint32, nanoGPT's layout
    meta.json              token type, tokenizer, and each split's number of tokens and SHA-256

The folder's name ends in a hash of everything that determines the content. The folder is written under a
temporary name and renamed, so a folder that exists is complete, even if two processes prepare the same
tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data import corpora, external, tokenizers
from data.errors import DataError
from data.external import SPLITS, Meta, Split, TokenFile, Tokens
from data.files import digest, file_digest, new_folder

FORMAT = 2
ALWAYS_VERIFIED = 2**26  # bytes; the SHA-256 of splits up to this size is verified at every start
PART = 2**20  # tokens that are counted at once


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


def prepare(
    *,
    corpus: str,
    path: str | None,
    tokenizer: str,
    vocab_size: int,
    val_fraction: float | None,
    verify: bool,
    cache: str,
    spec: dict[str, Any] | None = None,
) -> Prepared:
    """Load the tokens of a corpus from the cache, or build them and write them to the cache. conf/data
    describes the arguments; ``spec`` describes the tokenizer if ``tokenizer`` is "init_from".

    Raises:
        DataError: the text is missing, unreadable or not UTF-8, or a prepared file is damaged.
    """
    if corpus == "prepared":
        source = Path(path or "")
        meta, known = external.read_external(source, tokenizer, spec, Path(cache))
        return open_files(source, meta, known, verify, external.REMEDY)
    assert val_fraction is not None  # the config was validated, so path is set as well
    if corpus == "shakespeare":
        text_digest, read = corpora.SHAKESPEARE_SHA256, corpora.shakespeare
    else:
        text = corpora.text(path or "") if corpus == "text" else corpora.tinyshakespeare(path, cache)
        text_digest, read = digest(text.encode()), lambda: text
    settings = {"format": FORMAT, "text": text_digest, "tokenizer": spec or tokenizer}
    settings |= {"val_fraction": val_fraction} | ({"vocab_size": vocab_size} if tokenizer == "bpe" else {})
    folder = Path(cache) / f"{corpus}-{tokenizer}-{digest(settings)[:12]}"
    if not folder.is_dir():
        print(f"preparing {corpus} with the tokenizer {tokenizer}", flush=True)
        new_tokenizer = tokenizers.TRAINERS.get(tokenizer, lambda *_: tokenizers.from_spec(spec))
        build(folder, read(), new_tokenizer, vocab_size, val_fraction)
    return load(folder, verify)


def build(
    folder: Path,
    text: str,
    new_tokenizer: Callable[[str, str, int], tokenizers.Tokenizer],
    vocab_size: int,
    val_fraction: float,
) -> None:
    """Write ``folder`` with the tokens of ``text``, unless another process has done so first. As in nanoGPT,
    the text is split before it is tokenized, so that the validation split is the same text for every
    tokenizer."""
    cut = int(len(text) * (1 - val_fraction))
    texts = {"train": text[:cut], "val": text[cut:]}
    where = ""
    try:
        tokenizer = new_tokenizer(texts["train"], texts["val"], vocab_size)
        dtype = token_type(tokenizer.vocab_size)
        splits = {}
        for split in SPLITS:
            where = f"{split} split: "
            splits[split] = tokenizer.encode(texts[split]).astype(dtype, copy=False).tobytes()
    except DataError as error:
        raise DataError(f"data: {where}{error}") from None
    meta: dict[str, Any] = {"format": FORMAT, "dtype": str(dtype), "tokenizer": tokenizer.spec}
    for split, content in splits.items():
        meta[split] = {"tokens": len(content) // dtype.itemsize, "sha256": digest(content)}
    try:
        with new_folder(folder) as temporary:
            for split, content in splits.items():
                (temporary / f"{split}.bin").write_bytes(content)
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    except OSError as error:
        if not folder.is_dir():
            raise DataError(
                f"data.cache: {folder.parent}: {error.strerror or error}; choose a writable folder"
            ) from None


def token_type(vocab_size: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def load(folder: Path, verify: bool) -> Prepared:
    """Open a folder that ``prepare`` wrote. Raises DataError if a file is missing or damaged; the SHA-256 of
    large files is compared only to ``verify``."""
    remedy = f"delete {folder}, and it will be prepared again"
    return open_files(folder, *external.read_meta(folder / "meta.json", remedy), verify, remedy)


def open_files(
    folder: Path, meta: Meta, tokenizer: tokenizers.Tokenizer, verify: bool, remedy: str
) -> Prepared:
    """Open the token files that ``meta`` describes. Raises DataError, whose message ends in ``remedy``."""
    if meta.train is None or meta.val is None:
        raise DataError(f"{folder / 'meta.json'}: missing or damaged (a split is missing); {remedy}")
    splits, dtype = {"train": meta.train, "val": meta.val}, np.dtype(meta.dtype)
    train, val = (open_split(folder, name, splits[name], dtype, verify, remedy) for name in SPLITS)
    digests = {name: split.sha256 for name, split in splits.items()}
    fingerprint = digest({"tokenizer": meta.tokenizer, "dtype": meta.dtype} | digests)
    return Prepared(folder, train, val, tokenizer, fingerprint)


def open_split(
    folder: Path, name: str, split: Split, dtype: np.dtype[Any], verify: bool, remedy: str
) -> Tokens:
    verify = verify or split.tokens * dtype.itemsize <= ALWAYS_VERIFIED
    parts = []
    for entry in split.files or [TokenFile(name=f"{name}.bin", tokens=split.tokens, sha256=split.sha256)]:
        file = folder / entry.name
        try:
            size, expected = file.stat().st_size, entry.offset + entry.tokens * dtype.itemsize
            if size != expected:
                raise DataError(f"{file}: has {size:,} bytes, not {expected:,}; {remedy}")
            if verify and file_digest(file) != entry.sha256:
                raise DataError(f"{file}: fails its checksum; {remedy}")
            parts.append(external.map_file(file, dtype, entry.offset))
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}; {remedy}") from None
    return parts[0] if len(parts) == 1 else external.Shards(parts)
