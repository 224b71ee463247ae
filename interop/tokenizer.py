"""Convert our tokenizers to those of the library ``tokenizers``, and back. Hugging Face stores byte pair
encoding as a list of merges; we, like tiktoken, store the tokens in the order of their merges."""

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from data import tokenizers
from data.errors import DataError
from data.tokenizers import ALPHABET, BYTE_OF

# The expression by which GPT-4 cuts a text into pieces; the one in data/tokenizers.py is equivalent, but has
# possessive quantifiers, which this library reads differently. GPT-2's is built into the library.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# a text that GPT-2's and GPT-4's expressions cut differently
PROBE = "I'll WE'VE it's don't 1234567 é e\u0301 日本🙂 ((x)) a_b\r\n\n\t  x  \n \n\n    y\n\n  "


def to_hf(spec: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of ``spec`` (data/tokenizers.py). It gives the same ids, except where a text has
    the name of a special token: it reads this as the token, ours as letters."""
    if spec["kind"] == "char":
        # <unk> is not in the vocabulary: an unknown character is an error, as in ours
        vocab = {character: i for i, character in enumerate(spec["chars"])}
        char = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        char.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        char.decoder = decoders.Fuse()
        return char
    tokens = [base64.b64decode(word) for word in spec["tokens"].split(" ")]
    vocab = {"".join(ALPHABET[byte] for byte in token): i for i, token in enumerate(tokens)}
    # like tiktoken, merge any two tokens that make a third, and leave a piece that is a token whole
    bpe = Tokenizer(models.BPE(vocab, [*merges(vocab)], ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=spec["pattern"] == "gpt2")
    split = pre_tokenizers.Split(Regex(GPT4), "isolated")
    of_gpt4 = pre_tokenizers.Sequence([split, byte_level])
    bpe.pre_tokenizer = byte_level if spec["pattern"] == "gpt2" else of_gpt4
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(name, normalized=False) for name in spec["special"]])
    return bpe


def merges(vocab: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of tokens that together make a third one, in the order of the third's id."""
    lengths = sorted({len(token) for token in vocab})  # few, even if a token has 50,000 spaces
    for token in vocab:
        for n in lengths:
            if n < len(token) and token[:n] in vocab and token[n:] in vocab:
                yield token[:n], token[n:]


def read(file: Path) -> dict[str, Any]:
    """Return the spec of the tokenizer of ours that gives the same ids as a tokenizer.json. Raises DataError
    if none does."""
    try:
        theirs = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"{file}: is damaged ({error}); use another model") from None
    theirs.no_truncation()
    theirs.no_padding()
    for spec in candidates(theirs):
        try:
            ours = tokenizers.from_spec(spec)
        except DataError:
            continue
        text = text_of_all_tokens(ours)
        if theirs.encode(text, add_special_tokens=False).ids == ours.encode(text).tolist():
            return spec
    raise DataError(f"{file}: neither a byte pair encoding like GPT-2's nor characters; use another model")


def candidates(theirs: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield the specs that have a tokenizer's tokens."""
    vocab, added = theirs.get_vocab(), theirs.get_added_tokens_decoder()
    special = [added[i].content for i in sorted(added) if added[i].special]
    words = sorted(vocab.keys() - special, key=vocab.__getitem__)
    yield {"kind": "char", "chars": "".join(words)}
    if all(BYTE_OF.keys() >= {*word} for word in words):
        tokens = " ".join(base64.b64encode(bytes(BYTE_OF[c] for c in word)).decode() for word in words)
        for pattern in tokenizers.PATTERNS:
            yield {"kind": "bpe", "pattern": pattern, "tokens": tokens, "special": special}


def text_of_all_tokens(ours: tokenizers.Tokenizer) -> str:
    """Return a text with all tokens, on which a different tokenizer with these tokens gives different ids."""
    if isinstance(ours, tokenizers.CharTokenizer):
        tokens, probe = [*ours.chars], ""
    else:
        tokens, probe = [token.decode(errors="ignore") for token in ours.tokens], PROBE
    texts = tokens * (1 + 100_000 // sum(map(len, tokens)))
    random.Random(0).shuffle(texts)
    return "".join(texts) + probe
