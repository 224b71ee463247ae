"""Our tokenizers as Hugging Face's ``tokenizer.json``, and back: plain data both, so no package of theirs is
needed, and none is run.

A byte pair encoding there is a list of merges in their order; here, as in tiktoken, tokens in the order of
their merges. Bytes are spelt as printable characters there: data/gpt2_vocab.py has the alphabet.
"""

import base64
import copy
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from data import tokenizers
from data.gpt2_vocab import ALPHABET
from system.errors import DataError
from system.files import small_text

LARGEST = 2**24  # bytes of a tokenizer.json; GPT-2's has 1.4 million
MOST = 10**8  # squared bytes of tokens, some seconds of looking for merges; GPT-2's have 3 million
BYTE_OF = {character: byte for byte, character in ALPHABET.items()}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
OPTIONS = (  # of a byte pair encoding; ours has none of them
    *("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback"),
)
NAMED = re.compile(r"<\|\w+\|>|<\w+>|\[\w+\]")  # special tokens, which no text is taken to have
# How a text is cut into pieces: by GPT-2's expression, which theirs has built in; by GPT-4's, here without
# possessive quantifiers, as theirs reads {1,3}+ otherwise, which cuts alike; each character by itself.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


CUTS = {
    "gpt2": BYTE_LEVEL | {"use_regex": True},
    "gpt4": {
        "type": "Sequence",
        "pretokenizers": [split(GPT4), BYTE_LEVEL | {"use_regex": False}],
    },
}


def spelt(token: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in token)


def described(spec: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer of ``spec`` (data/tokenizers.py) as the content of a tokenizer.json.

    Raises:
        DataError: it has tokens that no merge of two others makes.
    """
    common = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    if spec["kind"] == "char":
        vocab = {character: i for i, character in enumerate(spec["chars"])}
        return common | {
            "added_tokens": [],
            "pre_tokenizer": split(r"[\s\S]"),
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "WordLevel",
                "vocab": vocab,
                "unk_token": "<unk>",
            },  # not there: an error, as ours
        }
    tokens = [base64.b64decode(word) for word in spec["tokens"].split(" ")]
    merges = [f"{spelt(a)} {spelt(b)}" for a, b in merged(tokens)]
    vocab = {spelt(token): i for i, token in enumerate(tokens)}
    special = {name: len(tokens) + i for i, name in enumerate(spec["special"])}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return common | {
        "added_tokens": [{"id": i, "content": name} | plain for name, i in special.items()],
        "pre_tokenizer": copy.deepcopy(CUTS[spec["pattern"]]),
        "post_processor": BYTE_LEVEL | {"trim_offsets": False, "use_regex": True},
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": {
            "type": "BPE",
            **dict.fromkeys(OPTIONS),
            "vocab": vocab | special,
            "merges": merges,
        },
    }


def merged(tokens: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Of each token of several bytes the two that it is merged of: what the merges before its own leave of
    it. Raises DataError where that is not two, or takes too long."""
    if sum(len(token) ** 2 for token in tokens) > MOST:
        raise DataError("its tokens are too long for one")
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    for rank, token in enumerate(tokens):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            ranks = [rank_of.get(a + b, rank) for a, b in pairwise(parts)]
            first = min(ranks)
            if first >= rank:
                break
            at = ranks.index(first)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(token) > 1:
            if len(parts) != 2:
                raise DataError(f"its token {token!r} is no merge of two others, which tokenizer.json wants")
            yield parts[0], parts[1]


def read(file: Path) -> dict[str, Any]:
    """The spec of a tokenizer.json, where one of our tokenizers is what it describes.

    Raises:
        DataError: it is damaged, too large, or describes another kind.
        OSError: it cannot be read.
    """
    try:
        said = json.loads(small_text(file, LARGEST))
        for spec in possible(said):
            tokenizers.from_spec(spec)  # which looks at it
            if essence(described(spec)) == essence(said):
                return spec
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise DataError(
        f"{file}: damaged, or of another kind than GPT-2's, or of characters, which are read here; "
        "use another model"
    )


def possible(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the tokens of a tokenizer.json may be to us."""
    special = {str(token["content"]): int(token["id"]) for token in said["added_tokens"]}
    if not all(map(NAMED.fullmatch, special)):  # theirs would find it in an ordinary text
        return
    vocab = {word: i for word, i in said["model"]["vocab"].items() if word not in special}
    words = sorted(vocab, key=vocab.__getitem__)
    if said["model"].get("type") == "WordLevel":
        yield {"kind": "char", "chars": "".join(words)}
        return
    tokens = " ".join(base64.b64encode(bytes(BYTE_OF[c] for c in word)).decode() for word in words)
    for pattern in CUTS:
        names = sorted(special, key=special.__getitem__)
        yield {"kind": "bpe", "pattern": pattern, "tokens": tokens, "special": names}


def essence(said: dict[str, Any]) -> tuple[Any, ...]:
    """What of a tokenizer.json decides which ids a text has."""
    model = said["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
    special = {token["content"]: token["id"] for token in said["added_tokens"]}
    options = [model.get(key) or None for key in OPTIONS]
    cut = {"use_regex": True} | said["pre_tokenizer"]
    cut.pop("trim_offsets", None)  # which is about offsets
    kind = model.get("type", "BPE")  # which old files do not say
    after = (said.get("post_processor") or {}).get("type", "ByteLevel")  # others add tokens
    return kind, model["vocab"] | special, merges, special, options, cut, said["normalizer"], after
