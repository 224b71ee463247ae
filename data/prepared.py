"""Load the tokens of a corpus; tokenize it first unless the cache has its tokens. The cache has a folder of
token files for each corpus and tokenizer. The folder's name ends in a hash of all that determines the tokens.
A folder is written under a temporary name and then renamed, so it is complete, even if two processes prepare
the same tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data import corpora, external, tokenizers
from data.errors import DataError
from data.files import digest, new_folder
from data.token_files import SPLITS, Tokens, open_split, read_meta, write_tokens

FORMAT = 3  # part of the names in the cache; raise it if the tokens or the files change
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
        """Return the number of bytes of the validation split's text, without its first token, which is not a
        target. A special token ends a document and counts as one byte, like the line break that ends a
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
        folder, remedy = Path(path or ""), external.REMEDY
        meta, known = external.describe(folder, tokenizer, spec, Path(cache))
    else:
        assert val_fraction is not None  # the config was validated, so path is set as well
        folder = cached(corpus, path, tokenizer, vocab_size, val_fraction, cache, spec)
        remedy = f"delete {folder}, and it will be prepared again"
        meta, known = read_meta(folder / "meta.json", remedy)
    train, val = (open_split(folder, files, meta.dtype, verify, remedy) for files in (meta.train, meta.val))
    return Prepared(folder, train, val, known, meta.fingerprint())


def cached(
    corpus: str,
    path: str | None,
    tokenizer: str,
    vocab_size: int,
    val_fraction: float,
    cache: str,
    spec: dict[str, Any] | None,
) -> Path:
    """Return a corpus's folder in the cache; write it first if it is missing. As in nanoGPT, the text is
    split before it is tokenized: the validation split is the same text for every tokenizer."""
    if corpus == "shakespeare":  # its text is read only if it has to be tokenized
        text_digest, read = corpora.SHAKESPEARE_SHA256, corpora.shakespeare
    else:
        whole = corpora.text(path or "") if corpus == "text" else corpora.tinyshakespeare(path, cache)
        text_digest, read = digest(whole.encode()), lambda: whole
    settings = {"format": FORMAT, "text": text_digest, "tokenizer": spec or tokenizer}
    settings |= {"val_fraction": val_fraction} | ({"vocab_size": vocab_size} if tokenizer == "bpe" else {})
    folder = Path(cache) / f"{corpus}-{tokenizer}-{digest(settings)[:12]}"
    if folder.is_dir():
        return folder
    print(f"preparing {corpus} with the tokenizer {tokenizer}", flush=True)
    text = read()
    cut = int(len(text) * (1 - val_fraction))
    texts = {"train": text[:cut], "val": text[cut:]}
    try:
        new_tokenizer = tokenizers.TRAINERS.get(tokenizer, lambda *_: tokenizers.from_spec(spec))
        known = new_tokenizer(texts["train"], texts["val"], vocab_size)
        with new_folder(folder) as temporary:
            write_tokens(temporary, known, ((split, known.encode(texts[split])) for split in SPLITS))
    except DataError as error:
        raise DataError(f"data: {error}") from None
    except OSError as error:
        if not folder.is_dir():  # else another process has written it
            why = f"data.cache: {folder.parent}: {error.strerror or error}"
            raise DataError(f"{why}; choose a writable folder") from None
    return folder
