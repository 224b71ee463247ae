"""Convert our tokenizers to Hugging Face's ``tokenizer.json`` and back. Both are plain data, so no package of
Hugging Face is needed.

Hugging Face stores byte pair encoding as a list of merges in order; we, like tiktoken, store the tokens in
the order of the merges. Hugging Face spells bytes as printable characters: ALPHABET in data/tokenizers.py.
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
from data.errors import DataError
from data.tokenizers import ALPHABET, BYTE_OF

MOST_WORK = 10**8  # Σ length² over tokens, which takes find_merges a few seconds; GPT-2's is 3 million
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
# Options of Hugging Face's byte pair encoding that ours lacks.
OPTIONS = "dropout continuing_subword_prefix end_of_word_suffix ignore_merges byte_fallback".split()
SPECIAL = re.compile(r"<\|\w+\|>|<\w+>|\[\w+\]")  # names of special tokens that do not occur in ordinary text
# The expression by which GPT-4 cuts a text into pieces; the one in data/tokenizers.py is equivalent, but has
# possessive quantifiers, which Hugging Face's library reads differently; GPT-2's is built into that library.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GPT4 in files of others and of earlier versions, which differs in blank lines at the end of a text
EARLIER = GPT4.replace(r"|\s+\z", "")


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS = {
    "gpt2": BYTE_LEVEL | {"use_regex": True},
    "gpt4": {"type": "Sequence", "pretokenizers": [split(GPT4), BYTE_LEVEL | {"use_regex": False}]},
}


def spell(token: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in token)


def to_tokenizer_json(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the tokenizer of ``spec`` (data/tokenizers.py) as the content of a tokenizer.json. Raises
    DataError if a token is not the merge of two others."""
    common = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    if spec["kind"] == "char":
        vocab = {character: i for i, character in enumerate(spec["chars"])}
        return common | {
            "added_tokens": [],
            "pre_tokenizer": split(r"[\s\S]"),
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            # <unk> is not in the vocabulary: an unknown character is an error, as in ours
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        }
    tokens = [base64.b64decode(word) for word in spec["tokens"].split(" ")]
    merges = [f"{spell(a)} {spell(b)}" for a, b in find_merges(tokens)]
    vocab = {spell(token): i for i, token in enumerate(tokens)}
    special = {name: len(tokens) + i for i, name in enumerate(spec["special"])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return common | {
        "added_tokens": [{"id": i, "content": name} | flags for name, i in special.items()],
        "pre_tokenizer": copy.deepcopy(PRE_TOKENIZERS[spec["pattern"]]),
        "post_processor": BYTE_LEVEL | {"trim_offsets": False, "use_regex": True},
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": dict.fromkeys(OPTIONS) | {"type": "BPE", "vocab": vocab | special, "merges": merges},
    }


def find_merges(tokens: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield, for each token of several bytes, the two tokens that are merged into it: the result of all
    earlier merges on its bytes. Raises DataError if there are not two, or finding them would take
    too long."""
    if sum(len(token) ** 2 for token in tokens) > MOST_WORK:
        raise DataError("the tokenizer's tokens are too long for a tokenizer.json")
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    for rank, token in enumerate(tokens):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            ranks = [rank_of.get(a + b, rank) for a, b in pairwise(parts)]
            lowest = min(ranks)
            if lowest >= rank:
                break
            i = ranks.index(lowest)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(token) > 1:
            if len(parts) != 2:
                raise DataError(f"token {token!r} is not the merge of two others, as tokenizer.json needs")
            yield parts[0], parts[1]


def read(file: Path) -> dict[str, Any]:
    """Return the spec of the tokenizer in a tokenizer.json. Raises DataError if our tokenizers cannot express
    it, and OSError if the file cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        for spec in candidates(content):
            tokenizers.from_spec(spec)  # raises if it is invalid
            if essence(to_tokenizer_json(spec)) == essence(content):
                return spec
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise DataError(
        f"{file}: is damaged, or neither a byte pair encoding like GPT-2's nor characters; use another model"
    )


def candidates(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the specs that may be equivalent to a tokenizer.json, as they have the same tokens."""
    special = {str(token["content"]): int(token["id"]) for token in content["added_tokens"]}
    if not all(map(SPECIAL.fullmatch, special)):  # Hugging Face would find such a name in ordinary text
        return
    vocab = {word: i for word, i in content["model"]["vocab"].items() if word not in special}
    words = sorted(vocab, key=vocab.__getitem__)
    if content["model"].get("type") == "WordLevel":
        yield {"kind": "char", "chars": "".join(words)}
        return
    tokens = " ".join(base64.b64encode(bytes(BYTE_OF[c] for c in word)).decode() for word in words)
    for pattern in PRE_TOKENIZERS:
        names = sorted(special, key=special.__getitem__)
        yield {"kind": "bpe", "pattern": pattern, "tokens": tokens, "special": names}


def essence(content: dict[str, Any]) -> tuple[Any, ...]:
    """Return the parts of a tokenizer.json that decide the ids of a text."""
    model = content["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    options = [model.get(key) or None for key in OPTIONS]
    pre_tokenizer = {"use_regex": True} | content["pre_tokenizer"]
    pre_tokenizer.pop("trim_offsets", None)  # trim_offsets changes offsets only
    parts = pre_tokenizer.get("pretokenizers", [])
    pre_tokenizer["pretokenizers"] = [split(GPT4) if part == split(EARLIER) else part for part in parts]
    kind = model.get("type", "BPE")  # missing in old files
    post = (content.get("post_processor") or {}).get("type", "ByteLevel")  # other types add tokens
    vocab, normalizer = model["vocab"] | special, content["normalizer"]
    return kind, vocab, merges, special, options, pre_tokenizer, normalizer, post
