"""Tokenize a corpus once and keep the tokens in the cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data import corpora, tokenizers
from data.external import load_external
from data.token_files import FORMAT, Prepared, digest, load, token_type, write
from system.errors import DataError
from system.terminal import announced


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
        with announced("reading the token files"):
            return load_external(Path(path or ""), tokenizer, verify, Path(cache), spec)
    assert val_fraction is not None  # the config was validated, so path is set as well
    with announced("preparing the text"):
        if corpus == "shakespeare":
            text_digest, read = corpora.SHAKESPEARE_SHA256, corpora.shakespeare
        else:
            text = corpora.text(path or "") if corpus == "text" else corpora.tinyshakespeare(path, cache)
            text_digest, read = digest(text.encode()), lambda: text
        settings = {"tokenizer": spec or tokenizer, "val_fraction": val_fraction} | (
            {"vocab_size": vocab_size} if tokenizer == "bpe" else {}
        )
        key = digest({"format": FORMAT, "text": text_digest} | settings)
        folder = Path(cache) / f"{corpus}-{tokenizer}-{key[:12]}"
        if not folder.is_dir():
            new_tokenizer = tokenizers.TRAINERS.get(tokenizer, lambda *_: tokenizers.from_spec(spec))
            build(folder, read(), new_tokenizer, vocab_size, val_fraction)
    with announced("reading the tokens"):
        return load(folder, verify)


def build(
    folder: Path,
    text: str,
    new_tokenizer: Callable[[str, str, int], tokenizers.Tokenizer],
    vocab_size: int,
    val_fraction: float,
) -> None:
    """Write ``folder`` with the tokens of ``text``. As in nanoGPT, the text is split before it is tokenized,
    so that the validation split is the same text for every tokenizer."""
    cut = int(len(text) * (1 - val_fraction))
    texts = {"train": text[:cut], "val": text[cut:]}
    where = ""
    try:
        tokenizer = new_tokenizer(texts["train"], texts["val"], vocab_size)
        dtype = token_type(tokenizer.vocab_size)
        splits = {}
        for split, part in texts.items():
            where = f"{split} split: "
            splits[split] = tokenizer.encode(part).astype(dtype, copy=False)
    except DataError as error:
        raise DataError(f"data: {where}{error}") from None
    meta = {"format": FORMAT, "characters": len(text), "dtype": str(dtype), "tokenizer": tokenizer.spec}
    for split, tokens in splits.items():
        meta[split] = {"tokens": len(tokens), "sha256": digest(tokens.tobytes())}
    write(folder, meta, splits)
